package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// TestNobodyElseLooks looks in the source for readers of files that the kernel can have them
// wait for.
func TestNobodyElseLooks(t *testing.T) {
	t.Parallel()
	reads := regexp.MustCompile(`os\.(ReadFile|Readlink|Open|Stat)\(.*("|/)(auxv|cmdline|environ|exe|io|map_files|maps|mem|` +
		`numa_maps|pagemap|smaps|stack|stat|syscall|wchan)"`)
	fixture.Must(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		for _, child := range []string{"internal/procs", "internal/stack", "internal/worker", "internal/fixture", "bench", "collectors/host/proc.go"} {
			if strings.HasPrefix(path, "../../"+child) {
				return err
			}
		}
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		for n, line := range strings.Split(string(fixture.Value(os.ReadFile(path))(t)), "\n") {
			if reads.MatchString(line) && !strings.Contains(line, `"/proc/self/`) {
				t.Errorf("%s:%d reads what the kernel can have it wait for: %s", path, n+1, strings.TrimSpace(line))
			}
		}
		return nil
	}))
}

// TestAProcessHoldsWhoLooksAtIt looks at a process that has its readers wait, and meanwhile at
// others. Later it is known that the kernel holds a look, and once it lets that go, there is an answer.
func TestAProcessHoldsWhoLooksAtIt(t *testing.T) {
	pids, letGo := fixture.Executing(t, 1)
	pid := pids[0]
	read := func() error { return fixture.Error(ReadFile("/proc", pid, "stat")) }
	fixture.Fails(t, read(), ErrLate.Error(), "a look at it")
	fixture.Fails(t, fixture.Error(ReadFiles("/proc", pid, []string{"stat", "io"})), ErrLate.Error(), "another look at it")
	fixture.Must(t, fixture.Error(ReadStat("/proc", os.Getpid())))
	looks.mu.Lock()
	fixture.Equal(t, strings.Count(fmt.Sprint(slices.Collect(maps.Keys(looks.late))), fmt.Sprintf("/proc/%d ", pid)), 2,
		"looks at it that are late")
	looks.mu.Unlock()
	fixture.Eventually(t, "the kernel is seen to hold it", func() bool { return !errors.Is(read(), ErrLate) })
	fixture.Equal(t, errors.Is(read(), ErrHeld), true, "the verdict is that it is held:")
	fixture.Fails(t, fixture.Error(one(apart, files, "/proc", pid, "io")), ErrHeld.Error(), "a look that awaits the verdict")
	letGo()
	fixture.Eventually(t, "it is looked at", func() bool { return errors.Is(read(), fs.ErrNotExist) })
}

// TestALateAnswerIsOfTheSameProcess has the answer of a look that was late, unless its process has
// ended since, or others' looks are as many as there may be.
func TestALateAnswerIsOfTheSameProcess(t *testing.T) {
	t.Parallel()
	k := keeper{most: maxHeld, ofOwner: maxOfOwner, late: map[string]*sent{}}
	self := filepath.Join("/proc", strconv.Itoa(os.Getpid()))
	late := func(process int) *sent {
		l := &sent{what: key(files, self, []string{"stat"}), process: process, since: time.Now(), found: make(chan []found, 1)}
		k.late[l.what] = l
		return l
	}
	ask := func() string {
		all, err := k.ask(loop, files, self, []string{"stat"})
		if err != nil {
			return err.Error()
		}
		return string(all[0].text)
	}
	l := late(fixture.Value(unix.Open(self, unix.O_PATH, 0))(t))
	fixture.Contains(t, ask(), "for a moment at least", "before it ends")
	l.found <- []found{{text: []byte("earlier")}}
	fixture.Equal(t, ask(), "earlier", "once it has ended")
	late(-1).found <- []found{{text: []byte("earlier")}} // as if its process had ended
	fixture.Contains(t, ask(), strconv.Itoa(os.Getpid())+" (", "of another process")
	for user := range 7 { // who collude
		for n := range maxOfOwner {
			what := fmt.Sprint(user, n)
			k.late[what] = &sent{what: what, of: strconv.Itoa(1000 + user), since: time.Now(), found: make(chan []found, 1)}
		}
	}
	fixture.Contains(t, ask(), strconv.Itoa(os.Getpid())+" (", "while seven users have as many late as they may")
	for what := range k.late {
		k.late[what].of = owner(self)
	}
	fixture.Contains(t, ask(), "56 other looks at processes of its owner", "while its owner has")
	for _, l := range k.late {
		l.found <- nil
	}
	fixture.Contains(t, ask(), strconv.Itoa(os.Getpid())+" (", "while its owner's have answers")
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 2 3 4 5 6 %d 8 9 10 11 12 13 14 15 16 17 18 19 4711 20\n"
	for line, want := range map[string]Stat{
		"7 (python3) S" + fmt.Sprintf(rest, 0x400):         {"python3", 'S', 2, false, false, 25, 4711},
		"7 (a) R (b\x1b) D" + fmt.Sprintf(rest, 0x404):     {"a) R (b\x1b", 'D', 2, false, true, 25, 4711},
		"7 (kworker/0:1) ?" + fmt.Sprintf(rest, 0x4208060): {"kworker/0:1", '?', 2, true, false, 25, 4711},
	} {
		fixture.Equal(t, fixture.Value(ParseStat([]byte(line)))(t), want, "%q", line)
	}
	for _, line := range []string{"", "7", "7 (a", "7 ) (", "7 (a) S 1 2", "7 (a) S x" + fmt.Sprintf(rest, 0)} {
		fixture.Fails(t, fixture.Error(ParseStat([]byte(line))), "", "%q", line)
	}
}
