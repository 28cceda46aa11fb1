// Package hook builds the hook, libgpusteward.so, with its simulated driver, and runs their tests. The hook is a
// library in C for LD_PRELOAD. It gives a program the GPU time and memory that the broker grants.
package hook

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// A build of the hook: for this machine, for another one, or with sanitizers.
type build struct {
	dir    string   // where they are built
	runner []string // the program that runs its programs here; empty: they run directly
	make   func() error
}

func newBuild(prefix, dir string, targets ...string) *build {
	for i := range targets {
		targets[i] = prefix + targets[i]
	}
	return &build{dir: dir, make: sync.OnceValue(func() error { return fixture.MakeHook(".", targets...) })}
}

var here = newBuild("", "build", "preloaded", "programs")

// made makes the build once, and returns the paths of the library and of the simulated driver.
func (m *build) made(t *testing.T) (so, stub string) {
	t.Helper()
	for _, of := range []string{"src", "stub", "test"} { // go test caches a result until one of these changes
		fixture.Must(t, fixture.Error(os.ReadDir(of)))
	}
	fixture.Must(t, m.make())
	dir := fixture.Value(filepath.Abs(m.dir))(t)
	return filepath.Join(dir, "libgpusteward.so"), filepath.Join(dir, "stub")
}

// run runs a program under the hook, on a simulated GPU of its own.
func (m *build) run(t *testing.T, env []string, argv ...string) (stdout, stderr string) {
	t.Helper()
	so, stub := m.made(t)
	env = append([]string{"LD_PRELOAD=" + so, "LD_LIBRARY_PATH=" + stub,
		"GS_STUB_FILE=" + filepath.Join(t.TempDir(), "gpu")}, env...)
	own := append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	if m.runner != nil { // the runner itself belongs to this machine
		own = own[:1]
		argv = slices.Concat(m.runner, []string{"-E", strings.Join(env, ",")}, argv)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = own, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	return out.String(), errs.String()
}

// without names the tests that are left out under qemu. It aborts when children of threads start a
// thread, and has threads of its own when a process's last thread ends. The last three compare times of
// some milliseconds, which emulation stretches.
const without = "GS_WITHOUT=a_child_begins_afresh a_thread_to_be_cancelled_can_exit " +
	"who_leaves_its_main_thread_ends_with_the_others who_was_helped_may_queue_more who_runs_dry_may_queue_more " +
	"a_host_function_in_open_is_remembered"

// hang ends a program that never ends; the slowest take some seconds.
const hang = 5 * time.Minute

// ofEachBuild are the tests that are also run for aarch64: see hook_tools_test.go.
var ofEachBuild = map[string]func(*testing.T, *build){
	"programs": programs, "preloaded": preloaded, "limit": limit, "NVML": nvml, "exports": exports,
}

func TestHook(t *testing.T) {
	t.Parallel()
	for name, test := range ofEachBuild {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, here)
		})
	}
}

// programs runs every test/test_*.c but for the tests that GS_WITHOUT names.
func programs(t *testing.T, m *build) {
	_, stub := m.made(t)
	sources, err := filepath.Glob("test/test_*.c")
	if err != nil || len(sources) < 10 {
		t.Fatalf("%v, %v", sources, err)
	}
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), ".c")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m.runs(t, stub, name)
		})
	}
}

// runs runs a program of tests, which prints what failed.
func (m *build) runs(t *testing.T, stub, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	argv := append(slices.Clone(m.runner), filepath.Join(filepath.Dir(stub), name))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+stub)
	if m.runner != nil {
		cmd.Env = append(cmd.Env, without)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// preloaded runs the test of the interception under the preloaded library.
// If dlsym passes a call on, libc must take it for the program's own.
func preloaded(t *testing.T, m *build) {
	so, _ := m.made(t)
	m.run(t, nil, filepath.Join(filepath.Dir(so), "preloaded"))
}

// limit lets a program launch kernels and allocate by each way to the
// driver's calls. Under the hook it gets as much as its limit allows.
func limit(t *testing.T, m *build) {
	_, stub := m.made(t)
	for _, way := range []string{"dlsym", "link", "procaddress"} {
		out, _ := m.run(t, []string{"GPUSTEWARD_SOCKET=/none", "GPUSTEWARD_MEMORY_LIMIT=64m"},
			filepath.Join(stub, "load"), "--resolve", way, "--kernel-us", "10", "--steps", "10",
			"--alloc-mib", "100")
		// Each piece has 20 MiB; the error is CUDA_ERROR_OUT_OF_MEMORY.
		if !strings.Contains(out, "\nalloc 62914560 2\n") ||
			!regexp.MustCompile(`\ntotal \d+ 10 `).MatchString(out) {
			t.Errorf("%s: under 64 MiB, in steps of 20, a program said\n%s", way, out)
		}
	}
}

// nvml lets a program without CUDA and without a broker ask NVML for the
// GPU's memory. Under a limit the card appears to have the limit's size.
func nvml(t *testing.T, m *build) {
	_, stub := m.made(t)
	const cardV1, cardV2 = "0 85899345920 85899345920 0 -\n", "0 85899345920 85630910464 0 268435456\n"
	const limit, none, off = "GPUSTEWARD_MEMORY_LIMIT=8g", "GPUSTEWARD_SOCKET=/none", "GPUSTEWARD_OFF=1"
	for _, c := range []struct {
		env        []string
		args, want string
	}{
		{[]string{none}, "link v1 gpu", cardV1},
		{[]string{none}, "dlsym v1 gpu", cardV1},
		{[]string{none}, "link v2 gpu", cardV2},
		{[]string{none}, "dlsym v2 gpu", cardV2},
		{[]string{none, limit}, "link v1 gpu", "0 8589934592 8589934592 0 -\n"},
		{[]string{none, limit}, "dlsym v1 gpu", "0 8589934592 8589934592 0 -\n"},
		{[]string{none, limit}, "link v2 gpu", "0 8589934592 8589934592 0 0\n"},
		{[]string{none, limit}, "dlsym v2 gpu", "0 8589934592 8589934592 0 0\n"},
		{[]string{none, limit, "GS_STUB_MIG=1"}, "dlsym v1 mig", "0 8589934592 8589934592 0 -\n"},
		{[]string{none, limit, off}, "link v1 gpu", cardV1},
		{[]string{none, limit, off}, "dlsym v2 gpu", cardV2},
		{[]string{none, "GPUSTEWARD_MEMORY_LIMIT=90g"}, "dlsym v2 gpu", cardV2},
	} {
		argv := append([]string{filepath.Join(stub, "smi")}, strings.Fields(c.args)...)
		if out, errs := m.run(t, c.env, argv...); out != c.want || errs != "" {
			t.Errorf("%v %s: %q %q, want %q", c.env, c.args, out, errs, c.want)
		}
	}
}

// exports compares the library's exported names with its lists of wrappers.
// Any other name could replace a function of a program.
func exports(t *testing.T, m *build) {
	so, _ := m.made(t)
	list := fixture.Value(os.ReadFile("src/base/calls.h"))(t)
	nccl := fixture.Value(os.ReadFile("src/gate/nccl.c"))(t)
	nvmlCalls := fixture.Value(os.ReadFile("src/wrappers/nvml.h"))(t)
	want := []string{"dlsym", "ioctl"}
	names := regexp.MustCompile(`(?m)^(?:GS_WRAP\(|\tX\(|GS_NVML )(\w+)[,(]`)
	for _, m := range names.FindAllSubmatch(slices.Concat(list, nccl, nvmlCalls), -1) {
		want = append(want, string(m[1]))
	}
	file := fixture.Value(elf.Open(so))(t)
	defer file.Close()
	symbols := fixture.Value(file.DynamicSymbols())(t)
	var got []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			got = append(got, s.Name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("exports\n%v\nwant\n%v", got, want)
	}
	needed := fixture.Value(file.ImportedLibraries())(t)
	for _, name := range needed {
		// Before glibc 2.34, libc had three parts.
		if !regexp.MustCompile(`^(libc|libdl|libpthread|ld-linux-.*)\.so\.\d+$`).MatchString(name) {
			t.Errorf("needs %s", name)
		}
	}
	calls := fixture.Value(systemCalls())(t)
	imports := fixture.Value(file.ImportedSymbols())(t)
	for _, s := range imports {
		if calls[s.Name] {
			t.Errorf("calls %s, which a program may export itself: see src/base/sys.h", s.Name)
		}
		var minor int
		fmt.Sscanf(s.Version, "GLIBC_2.%d", &minor)
		fixture.AtMost(t, minor, 17, "needs %s of %s: glibc.h lacks it", s.Name, s.Version)
	}
}

// systemCalls returns the names of the system calls, with those of functions that only make such calls.
func systemCalls() (map[string]bool, error) {
	table, err := os.ReadFile("../../enforcer/stack/syscalls.tsv")
	names := map[string]bool{"syscall": true, "usleep": true, "sleep": true}
	for line := range strings.Lines(string(table)) {
		name, _, _ := strings.Cut(line, "\t")
		names[name] = true
	}
	return names, err
}

// TestParts checks that each function of a header is defined in the source of
// the same name, and that no source declares a function.
func TestParts(t *testing.T) {
	t.Parallel()
	read := func(pattern string) map[string]string {
		files := map[string]string{}
		paths := fixture.Value(filepath.Glob(pattern))(t)
		for _, path := range paths {
			text := fixture.Value(os.ReadFile(path))(t)
			files[strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))] = string(text)
		}
		return files
	}
	declared := regexp.MustCompile(`(?m)^(?:extern )?[a-z][\w *]*\b(gs_\w+)\([^{};]*;`)
	sources, n := read("src/*/*.c"), 0
	for part, header := range read("src/*/*.h") {
		for _, m := range declared.FindAllStringSubmatch(header, -1) {
			n++
			if defined := regexp.MustCompile(`(?m)^[a-z].*\b` + m[1] +
				`\([^{};]*\{`); !defined.MatchString(sources[part]) {
				t.Errorf("src/%s.h declares %s, which is not in src/%[1]s.c", part, m[1])
			}
		}
	}
	fixture.AtLeast(t, n, 100, "… functions are declared in the headers: are they found?")
	for part, source := range sources {
		for _, m := range declared.FindAllString(source, -1) {
			t.Errorf("src/%s.c: %s belongs into a header", part, m)
		}
	}
}

// TestForks compares the table of fork handlers with the sources. A part with a lock or a table needs a handler:
// another thread may hold the lock during the fork.
func TestForks(t *testing.T) {
	t.Parallel()
	table := fixture.Value(os.ReadFile("src/wrappers/forks.h"))(t)
	var listed, found []string
	for _, m := range regexp.MustCompile(`\bPART\((\w+)\)[ \n]`).FindAllSubmatch(table, -1) {
		listed = append(listed, string(m[1]))
	}
	parts := fixture.Value(filepath.Glob("src/*/*.c"))(t)
	guarded := regexp.MustCompile(`(?m)^(static |struct |}).* = .*(PTHREAD_MUTEX|GS_TABLE)_INIT`)
	for _, path := range parts {
		text := fixture.Value(os.ReadFile(path))(t)
		part := strings.TrimSuffix(filepath.Base(path), ".c")
		if bytes.Contains(text, []byte("\nvoid gs_forked_"+part+"(void)")) {
			found = append(found, part)
		} else if guarded.Match(text) {
			t.Errorf("%s has a lock and no handler of forks: see src/wrappers/forks.h", path)
		}
	}
	slices.Sort(listed)
	slices.Sort(found)
	if !slices.Equal(listed, found) {
		t.Errorf("src/wrappers/forks.h lists\n%v\nand handlers are in\n%v", listed, found)
	}
}

// TestQuiet runs programs under the hook without a broker. A program has an
// additional line on its standard error only if its user asked for a broker.
func TestQuiet(t *testing.T) {
	t.Parallel()
	_, stub := here.made(t)
	load := filepath.Join(stub, "load")
	absent := filepath.Join(t.TempDir(), "broker.sock")
	for _, test := range []struct {
		name      string
		argv, env []string
		lines     int
	}{
		{name: "no GPU", argv: []string{"/bin/true"}},
		{name: "no GPU, asked", argv: []string{"/bin/true"}, env: []string{"GPUSTEWARD_SOCKET=" + absent}},
		{name: "GPU", argv: []string{load, "--kernel-us", "10", "--steps", "10"}},
		{name: "GPU, asked", argv: []string{load, "--kernel-us", "10", "--steps", "10"},
			env: []string{"GPUSTEWARD_SOCKET=" + absent}, lines: 1},
		{name: "GPU, tenant", argv: []string{load, "--kernel-us", "10", "--steps", "10"},
			env: []string{"GPUSTEWARD_SOCKET=" + absent, "GPUSTEWARD_TENANT=blue"}, lines: 1},
		{name: "off", argv: []string{load, "--kernel-us", "10", "--steps", "10"},
			env: []string{"GPUSTEWARD_SOCKET=" + absent, "GPUSTEWARD_OFF=1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, stderr := here.run(t, test.env, test.argv...)
			fixture.Equal(t, strings.Count(stderr, "\n"), test.lines, "… lines on standard error:\n%s", stderr)
		})
	}
}

// TestNobodyReads runs programs without a broker whose standard error is a full pipe, or a
// pipe without a reader. The line about the broker neither stops nor ends them.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	so, stub := here.made(t)
	for name, leave := range map[string]func(reader, writer *os.File) error{
		"full": func(_, writer *os.File) error {
			size, err := unix.FcntlInt(writer.Fd(), unix.F_GETPIPE_SZ, 0)
			if err == nil {
				_, err = writer.Write(make([]byte, size))
			}
			return err
		},
		"no reader": func(reader, _ *os.File) error { return reader.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader, writer, err := os.Pipe()
			fixture.Must(t, err)
			defer reader.Close()
			defer writer.Close()
			fixture.Must(t, leave(reader, writer))
			ctx, cancel := context.WithTimeout(t.Context(), hang)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(stub, "load"), "--kernel-us", "10", "--steps", "10")
			cmd.Env = []string{"LD_PRELOAD=" + so, "LD_LIBRARY_PATH=" + stub,
				"GS_STUB_FILE=" + filepath.Join(t.TempDir(), "gpu"), "GPUSTEWARD_SOCKET=/none"}
			cmd.Stderr = writer
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
		})
	}
}
