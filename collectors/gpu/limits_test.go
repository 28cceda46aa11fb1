package gpu

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpusteward/internal/fixture"
)

// A limitsDriver is a directory with a fake driver of one GPU, GPU-a. A child process loads it, because go-nvml binds
// its calls to the first library that a process opens.
type limitsDriver struct {
	t   *testing.T
	dir string
}

func newLimitsDriver(t *testing.T, defines ...string) limitsDriver {
	t.Helper()
	d := limitsDriver{t, t.TempDir()}
	fixture.NVML(t, "../..", d.path("libnvidia-ml.so.1"), defines...)
	d.set("uuid.0", "GPU-a")
	return d
}

func (d limitsDriver) path(name string) string { return filepath.Join(d.dir, name) }

func (d limitsDriver) set(name, contents string) {
	d.t.Helper()
	fixture.Must(d.t, os.WriteFile(d.path(name), []byte(contents), 0o644))
}

func (d limitsDriver) content(name string) string {
	text, _ := os.ReadFile(d.path(name))
	return string(text)
}

// command requests limits, each "uuid cgroup soft hard".
func (d limitsDriver) command(limits ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], "-test.run=^TestLimitsOfAChild$")
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+d.dir, "FAKE_DRIVER="+d.dir, "LIMITS="+strings.Join(limits, "\n"))
	return c
}

// asks returns the answers to command.
func (d limitsDriver) asks(limits ...string) (answers []string) {
	d.t.Helper()
	out, err := d.command(limits...).CombinedOutput()
	fixture.Stop(d.t, err != nil, "%v\n%s", err, out)
	for line := range strings.Lines(string(out)) {
		if answer, ok := strings.CutPrefix(line, "answer: "); ok {
			answers = append(answers, strings.TrimSpace(answer))
		}
	}
	return answers
}

func TestLimitsOfAChild(t *testing.T) {
	limits, ok := os.LookupEnv("LIMITS")
	if !ok {
		t.Skip("only the other tests run this, as a child")
	}
	l, missing := Limits{NV: nvml.New(), Calls: new(Calls)}, ""
	for line := range strings.Lines(limits) {
		f := strings.Fields(line)
		soft, _ := strconv.ParseUint(f[2], 10, 64)
		hard, _ := strconv.ParseUint(f[3], 10, 64)
		fmt.Println("answer:", l.Limit(f[0], f[1], soft, hard))
		l.Calls.Missing(func(s string) { missing = s })
	}
	fmt.Println("answer:", missing)
}

func TestLimitIsSetOnce(t *testing.T) {
	t.Parallel()
	d := newLimitsDriver(t, "-DLIMITS")
	for i, step := range []struct{ ask, limits, sets string }{
		{"GPU-a /sys/fs/cgroup/a 1073741824 8589934592", "/sys/fs/cgroup/a 1073741824 8589934592", "set\n"},
		// it is kept
		{"GPU-a /sys/fs/cgroup/a 1073741824 8589934592", "/sys/fs/cgroup/a 1073741824 8589934592", "set\n"},
		{"GPU-a /sys/fs/cgroup/a 1073741824 4294967296", "/sys/fs/cgroup/a 1073741824 4294967296", "set\nset\n"},
		{"GPU-a /sys/fs/cgroup/a 0 18446744073709551615", "/sys/fs/cgroup/a 0 18446744073709551615", "set\nset\nset\n"},
		{"GPU-a /sys/fs/cgroup/a 0 18446744073709551615", "/sys/fs/cgroup/a 0 18446744073709551615", "set\nset\nset\n"},
	} {
		fixture.EqualSlices(t, d.asks(step.ask), []string{"<nil>", ""}, "step %d", i)
		if got := d.content("limits"); got != step.limits || d.content("sets") != step.sets {
			t.Errorf("step %d: the driver has %q after %q, want %q after %q", i, got, d.content("sets"), step.limits,
				step.sets)
		}
	}
	d.set("limits", "/sys/fs/cgroup/a 0 4396000000") // rounded, and more than 4 GiB
	if got := d.asks("GPU-a /sys/fs/cgroup/a 0 4294967296"); got[0] != "<nil>" ||
		d.content("sets") != "set\nset\nset\n" {
		t.Errorf("a limit that the driver rounded was set again: %q", got)
	}
}

func TestUnsetLimitIsAnError(t *testing.T) {
	t.Parallel()
	const ask = "GPU-a /sys/fs/cgroup/a 1 8589934592"
	for name, c := range map[string]struct {
		old                                bool
		file, contents, ask, want, missing string
	}{
		"another GPU": {ask: "GPU-b /sys/fs/cgroup/a 1 2", want: "nvmlDeviceGetHandleByUUID: not_found"},
		"not root": {file: "return.nvmlDeviceSetMemoryLimits_v1", contents: "4", ask: ask,
			want: "nvmlDeviceSetMemoryLimits_v1: no_permission"},
		"MIG": {file: "return.nvmlDeviceSetMemoryLimits_v1", contents: "3", ask: ask,
			want: "nvmlDeviceSetMemoryLimits_v1: not_supported"},
		"not kept": {file: "deaf", ask: ask, want: "nvmlDeviceGetMemoryLimits_v1: not_found"},
		"an older": {old: true, ask: ask, want: "this driver has no memory limits",
			missing: "nvmlDeviceSetMemoryLimits_v1"},
		"no such cgroup": {file: "return.nvmlDeviceSetMemoryLimits_v1", contents: "6", ask: ask, want: "nvmlDeviceSetMemoryLimits_v1: not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defines := []string{"-DLIMITS"}
			if c.old {
				defines = nil
			}
			d := newLimitsDriver(t, defines...)
			if c.file != "" {
				d.set(c.file, c.contents)
			}
			if got := d.asks(c.ask); !strings.HasPrefix(got[0], c.want) || got[1] != c.missing {
				t.Errorf("%q, want %q; missing %q, want %q", got[0], c.want, got[1], c.missing)
			}
			fixture.Equal(t, d.content("limits"), "", "set")
		})
	}
	t.Run("kept wrongly", func(t *testing.T) {
		t.Parallel()
		d := newLimitsDriver(t, "-DLIMITS")
		d.set("deaf", "")
		d.set("limits", "/sys/fs/cgroup/a 0 5")
		if got := d.asks(ask); !strings.Contains(got[0], "asked for 1 and 8589934592 bytes, the driver has 0 and 5") {
			t.Errorf("%q", got)
		}
	})
}

func TestLimitWaitsForTheDriver(t *testing.T) {
	t.Parallel()
	d := newLimitsDriver(t, "-DLIMITS")
	d.set("hang", "nvmlDeviceSetMemoryLimits_v1")
	c := d.command("GPU-a /sys/fs/cgroup/a 0 1024")
	done := make(chan error, 1)
	go func() { done <- c.Run() }()
	for d.content("stuck") == "" {
		select {
		case err := <-done:
			t.Fatalf("the call returned while the driver hung: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	fixture.Equal(t, d.content("limits"), "", "set")
	fixture.Must(t, os.Remove(d.path("hang")))
	if err := <-done; err != nil || d.content("limits") != "/sys/fs/cgroup/a 0 1024" {
		t.Errorf("%v, the driver has %q", err, d.content("limits"))
	}
}

func TestSimulatedHostHasNoLimits(t *testing.T) {
	t.Parallel()
	l := Limits{NV: &mock.Interface{
		InitFunc:     func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
	}, Calls: new(Calls)}
	err := l.Limit("GPU-a", "/sys/fs/cgroup/a", 0, 1)
	fixture.If(t, !errors.Is(err, ErrNoMemoryLimits), "%v, want %v", err, ErrNoMemoryLimits)
	l.NV = &mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }}
	fixture.Equal(t, ReturnOf(l.Limit("GPU-a", "/sys/fs/cgroup/a", 0, 1)), nvml.ERROR_DRIVER_NOT_LOADED,
		"… without a driver")
}

// TestOnlyMemoryLimitsAreSet checks that only one of the calls found by name
// changes a setting: the memory limit of a cgroup.
func TestOnlyMemoryLimitsAreSet(t *testing.T) {
	changes := regexp.MustCompile(`^"nvml(Device|System|GpuInstance|ComputeInstance|Vgpu[A-Za-z]*|Gpm|Unit)(Set|Reset|Clear|Destroy|Freeze|Remove|Modify|Activate)[A-Z].*"$`)
	files := fixture.Value(filepath.Glob("*.go"))(t)
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f := fixture.Value(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && changes.MatchString(l.Value) {
				found = append(found, name+" "+l.Value)
			}
			return true
		})
	}
	fixture.EqualSlices(t, found, []string{`limits.go "nvmlDeviceSetMemoryLimits_v1"`}, "found")
}
