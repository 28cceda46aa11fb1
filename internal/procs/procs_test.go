package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/worker"
)

// TestNobodyElseLooks looks in the source for readers of files that the kernel can have them
// wait for.
func TestNobodyElseLooks(t *testing.T) {
	t.Parallel()
	reads := regexp.MustCompile(`os\.(ReadFile|Readlink|Open|Stat)\(.*("|/)(auxv|cmdline|environ|exe|io|map_files|maps|mem|` +
		`numa_maps|pagemap|smaps|stack|stat|syscall|wchan)"`)
	fixture.Must(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		for _, child := range []string{"internal/procs", "internal/stack", "internal/fixture", "bench", "collectors/host/proc.go"} {
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
// others. Once it lets them go, it is looked at again. A child that is full of such looks is
// given up for another one.
func TestAProcessHoldsWhoLooksAtIt(t *testing.T) {
	pid, letGo := fixture.Executing(t)
	for _, look := range []func(pid int) error{
		func(pid int) error { return fixture.Error(ReadFile("/proc", pid, "io")) },
		func(pid int) error { return fixture.Error(Stat("/proc", pid)) },
		func(pid int) error { return fixture.Error(Readlink("/proc", pid, "exe")) },
	} {
		began := time.Now()
		if err := look(pid); !errors.Is(err, ErrHeld) {
			t.Errorf("a look at it: %v", err)
		}
		fixture.AtMost(t, time.Since(began), 2*busy, "a look takes")
		fixture.Must(t, look(os.Getpid()))
	}
	small := server{kind: &worker.Kind{Command: reader.Command, Running: 1, Children: 2}, most: 1}
	defer func() { small.cancel() }()
	io := func(pid string) order { return order{0, files, "/proc/" + pid, []string{"io"}} }
	for range 3 {
		if _, err := small.ask(io(fmt.Sprint(pid))); !errors.Is(err, ErrHeld) {
			t.Errorf("a look at it by a child that is full: %v", err)
		}
		fixture.Eventually(t, "the child has ended", func() bool {
			small.mu.Lock()
			defer small.mu.Unlock()
			return small.conn == nil && small.held["/proc/"+fmt.Sprint(pid)].order == 0
		})
		small.held["/proc/"+fmt.Sprint(pid)].at = time.Time{} // it is tried again
		fixture.Equal(t, len(fixture.Value(small.ask(io("self")))(t)), 1, "answers to the next look at another")
	}
	letGo()
	fixture.Eventually(t, "it is looked at", func() bool {
		_, err := ReadFile("/proc", pid, "stat")
		return errors.Is(err, fs.ErrNotExist)
	})
}
