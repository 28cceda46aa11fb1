package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// TestOnlyProcsReadsBlockingFiles looks in the source for readers of files that the kernel can have them wait for.
func TestOnlyProcsReadsBlockingFiles(t *testing.T) {
	t.Parallel()
	reads := regexp.MustCompile(`os\.(ReadFile|Readlink|Open|Stat)\(.*("|/)(auxv|cmdline|environ|exe|io|map_files|maps|mem|` +
		`numa_maps|pagemap|smaps|stack|stat|syscall|wchan)"`)
	fixture.Must(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		for _, child := range []string{"internal/procs", "enforcer/stack", "internal/worker", "internal/fixture", "bench", "collectors/host/proc.go"} {
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

// TestProcessBlocksItsReaders looks at a process that has its readers wait, and meanwhile at
// others. Later it is known that the kernel holds a look, and once it lets that go, there is an answer.
func TestProcessBlocksItsReaders(t *testing.T) {
	pids, letGo := fixture.Executing(t, 1)
	pid := pids[0]
	read := func() error { return fixture.Error(one(loop, files, "/proc", pid, "stat")) }
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
	k := keeper{most: maxHeld, late: map[string]*sent{}}
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
	for user := range 50 { // who collude
		for n := range max(1, (maxHeld-len(k.late))/freeParty) {
			what := fmt.Sprint(user, " ", n)
			k.late[what] = &sent{what: what, of: strconv.Itoa(1000 + user), since: time.Now(), found: make(chan []found, 1)}
		}
	}
	fixture.Contains(t, ask(), strconv.Itoa(os.Getpid())+" (", "while fifty users have as many late as they may")
	k.late["0 0"].of = party(self)
	fixture.Contains(t, ask(), "1 other looks at processes of its owner", "while it has as many")
	k.late["0 0"].of = "1000"
	for _, l := range k.late {
		l.found <- nil
	}
	fixture.Contains(t, ask(), strconv.Itoa(os.Getpid())+" (", "while its owner's have answers")
}

func TestParseStat(t *testing.T) {
	const rest = " 2 3 4 5 6 %d 8 9 10 11 12 13 14 15 16 17 18 19 4711 20\n"
	for line, want := range map[string]Stat{
		"7 (python3) S" + fmt.Sprintf(rest, 0x400):         {"python3", 'S', 2, 3, false, false, 25, 4711},
		"7 (a) R (b\x1b) D" + fmt.Sprintf(rest, 0x404):     {"a) R (b\x1b", 'D', 2, 3, false, true, 25, 4711},
		"7 (kworker/0:1) ?" + fmt.Sprintf(rest, 0x4208060): {"kworker/0:1", '?', 2, 3, true, false, 25, 4711},
	} {
		fixture.Equal(t, fixture.Value(ParseStat([]byte(line)))(t), want, "%q", line)
	}
	for _, line := range []string{"", "7", "7 (a", "7 ) (", "7 (a) S 1 2", "7 (a) S x" + fmt.Sprintf(rest, 0)} {
		fixture.Fails(t, fixture.Error(ParseStat([]byte(line))), "", "%q", line)
	}
}

func TestStatus(t *testing.T) {
	for status, want := range map[string]int{"Name:\tx\nNSpid:\t4711\t23\t1\nNSpgid:\t9\n": 1, "NSpid:\t4711\n": 4711,
		"Name:\tx\n": 99, "NSpid:\tx": 99, "NSpid:\n": 99, "": 99} {
		fixture.Equal(t, Inner([]byte(status), 99), want, "%q", status)
	}
	for status, want := range map[string][]string{"Name:\tGroups: 7\nGroups:\t4 27 \nNStgid:\t1\n": {"4", "27"},
		"Groups:\t \n": nil, "Groups\n": nil} {
		fixture.EqualSlices(t, StatusLine([]byte(status), "Groups"), want, "the groups of %q", status)
	}
}

func TestCgroup(t *testing.T) {
	for content, want := range map[string][2]string{ // without a controller, and of the devices
		"0::/a/b\n":                      {"/a/b", ""},
		"12:cpu,devices:/x\n0::/a b:c\n": {"/a b:c", "/x"},
		"0::/\n":                         {"/", ""},
		"12:devices:/x\n1:name=s:/y\n":   {"", "/x"},
		"":                               {},
		"0::/docker/7/init.scope":        {"/docker/7/init.scope", ""},
		"10:memory:/0::/trick:devices\n0::/real\n": {"/real", ""},
	} {
		for i, controller := range []string{"", "devices"} {
			got, ok := Cgroup(content, controller)
			fixture.If(t, got != want[i] || ok != (want[i] != ""), "%q of %q: %q, %v; want %q", controller, content, got, ok,
				want[i])
		}
	}
}

// TestWhose has a user be one party, whatever cgroups and UIDs he has.
func TestWhose(t *testing.T) {
	Etc = t.TempDir()
	t.Cleanup(func() { Etc = "/etc" })
	write := func(name, text string) { fixture.Must(t, os.WriteFile(filepath.Join(Etc, name), []byte(text), 0o600)) }
	write("passwd", "root:x:0:0::/:/bin/sh\nalice:x:1001:1001::/:/bin/sh\n")
	write("subuid", "alice:100000:65536\nalice:300000:10\n1002:165536:65536\nldap:231072:65536\nldap:400000:9\nbad:x:1\n:::\n")
	id, pod := strings.Repeat("ab", 32), "kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice"
	for of, want := range map[string]string{
		"1001 /": "1001", "100000 /": "1001", "165535 /": "1001", "165536 /": "1002", "300009 /": "1001", "300010 /": "300010",
		"231073 /": "231072", "400001 /": "231072", "99999 /": "99999",
		"1001 /user.slice/user-1001.slice/session-5.scope":                                        "/user.slice/user-1001.slice",
		"900000 /user.slice/user-1001.slice/user@1001.service/user.slice/libpod-" + id + ".scope": "/user.slice/user-1001.slice",
		"100007 /system.slice/cron.service":                                                       "1001", "1001 /system.slice/slurmstepd.scope/job_12/step_0": "1001",
		"1001 /system.slice/own.service/docker-" + id + ".scope": "1001", // a name that its user chooses
		"7 /system.slice/docker-" + id + ".scope/x":              "/system.slice/docker-" + id + ".scope",
		"8 /docker/" + id: "/docker/" + id, "0 /docker/" + id + "/x": "/docker/" + id,
		"9 /kubepods.slice/" + pod + "/cri-containerd-" + id + ".scope": "/kubepods.slice/" + pod,
		"9 /lxc.payload.web/init.scope":                                 "/lxc.payload.web", "0 /system.slice/a.service": "0 0::/system.slice/a.service\n",
	} {
		uid, cgroup, _ := strings.Cut(of, " ")
		write("status", "Name:\tx\nUid:\t"+uid+"\t5\t5\t5\n")
		write("cgroup", "0::"+cgroup+"\n")
		fixture.Equal(t, party(Etc), want, "%s:", of)
	}
	write("cgroup", "5:misc:/\n4:devices:/docker/"+id+"\n1:name=systemd:/docker/"+id+"\n")
	fixture.Equal(t, party(Etc), "/docker/"+id, "with cgroups of version 1:")
	write("subuid", "")
	fixture.Must(t, os.Chtimes(filepath.Join(Etc, "subuid"), time.Time{}, time.Unix(1, 0)))
	fixture.Equal(t, Login(100000), 100000, "once the file is empty:")
	fixture.Equal(t, party(t.TempDir()), "", "a process that is gone:")
}

// TestSignalIsNoEnd asks whether this process has ended while its thread gets signals.
func TestSignalIsNoEnd(t *testing.T) {
	t.Parallel()
	fd := fixture.Value(unix.PidfdOpen(os.Getpid(), 0))(t)
	defer unix.Close(fd)
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGWINCH)
	defer signal.Stop(got)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	task, done := unix.Gettid(), make(chan struct{})
	var sent sync.WaitGroup
	sent.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), task, unix.SIGWINCH)
			}
		}
	})
	ended := 0
	for range 20_000 {
		if Ended(fd) {
			ended++
		}
	}
	close(done)
	sent.Wait()
	fixture.Equal(t, ended, 0, "times that this process had ended")
}
