package procs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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
// others. Once it lets them go, it is looked at again.
func TestAProcessHoldsWhoLooksAtIt(t *testing.T) {
	pid, letGo := fixture.Executing(t)
	for _, look := range []func(pid int) error{
		func(pid int) error { return fixture.Error(ReadFile("/proc", pid, "io")) },
		func(pid int) error { return fixture.Error(Stat("/proc", pid)) },
		func(pid int) error { return fixture.Error(Readlink("/proc", pid, "exe")) },
	} {
		if err := look(pid); !errors.Is(err, ErrHeld) {
			t.Errorf("a look at it: %v", err)
		}
		fixture.Must(t, look(os.Getpid()))
		fixture.Equal(t, len(looks.held), 1, "looks that are held")
	}
	looks.most = 2 // others of the same owner may hold as many as are free
	fixture.Equal(t, errors.Is(fixture.Error(Stat("/proc", os.Getpid())), ErrHeld), true, "its owner holds too many:")
	looks.most = maxHeld
	letGo()
	fixture.Eventually(t, "it is looked at", func() bool {
		_, err := ReadFile("/proc", pid, "stat")
		return errors.Is(err, fs.ErrNotExist)
	})
}
