// Package test builds the hook, libgpusteward.so, with its simulated driver and
// runs their tests. The hook is C, in the directory above: a library for
// LD_PRELOAD that gives a program the GPU time and memory that the broker
// grants.
package test

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// hook is the directory of the library's sources.
const hook = ".."

// build makes the library and the simulated driver, once.
var build = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("make", "-s", "--no-print-directory", "-C", hook, "all", "stub").CombinedOutput()
	return string(out), err
})

// library returns the paths of the library and of the simulated driver's
// directory.
func library(t *testing.T) (so, stub string) {
	t.Helper()
	for _, tool := range []string{"make", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	if out, err := build(); err != nil || out != "" {
		t.Fatalf("make: %v\n%s", err, out)
	}
	dir, err := filepath.Abs(filepath.Join(hook, "build"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "libgpusteward.so"), filepath.Join(dir, "stub")
}

// TestPrograms runs every test_*.c: plain, under AddressSanitizer and
// UndefinedBehaviorSanitizer, and under ThreadSanitizer.
func TestPrograms(t *testing.T) {
	library(t)
	for _, target := range []string{"test", "asan", "tsan"} {
		t.Run(target, func(t *testing.T) {
			if target != "test" && testing.Short() {
				t.Skip("sanitizers take a while")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			if out, err := exec.CommandContext(ctx, "make", "-ks", "-C", hook, target).CombinedOutput(); err != nil {
				t.Errorf("make %s: %v\n%s", target, err, out)
			}
		})
	}
}

// TestExports holds the names that the library defines for others against the
// lists of what it wraps: one more could come between a program and its own.
func TestExports(t *testing.T) {
	so, _ := library(t)
	list, err := os.ReadFile(filepath.Join(hook, "calls.h"))
	if err != nil {
		t.Fatal(err)
	}
	nccl, err := os.ReadFile(filepath.Join(hook, "nccl.c"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"dlsym"}
	for _, m := range regexp.MustCompile(`(?m)^(?:GS_WRAP\(|EXPORT int )(\w+)[,(]`).FindAllSubmatch(slices.Concat(list, nccl), -1) {
		want = append(want, string(m[1]))
	}
	file, err := elf.Open(so)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("exports\n%v\nwant\n%v", got, want)
	}
	needed, err := file.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range needed {
		// Before glibc 2.34 libc had three parts.
		if !regexp.MustCompile(`^(libc|libdl|libpthread|ld-linux-.*)\.so\.\d+$`).MatchString(name) {
			t.Errorf("needs %s", name)
		}
	}
}

// TestQuiet runs programs under the hook without a broker: none of them has a
// line more on its standard error, unless its user asked for a broker.
func TestQuiet(t *testing.T) {
	so, stub := library(t)
	load := filepath.Join(stub, "load")
	absent := filepath.Join(t.TempDir(), "broker.sock")
	for _, test := range []struct {
		name  string
		argv  []string
		env   []string
		lines int
	}{
		{name: "no GPU", argv: []string{"/bin/true"}},
		{name: "no GPU, asked", argv: []string{"/bin/true"}, env: []string{"GPUSTEWARD_SOCKET=" + absent}},
		{name: "GPU", argv: []string{load, "--kernel-us", "10", "--steps", "10"}},
		{name: "GPU, asked", argv: []string{load, "--kernel-us", "10", "--steps", "10"}, env: []string{"GPUSTEWARD_SOCKET=" + absent}, lines: 1},
		{name: "GPU, tenant", argv: []string{load, "--kernel-us", "10", "--steps", "10"},
			env: []string{"GPUSTEWARD_SOCKET=" + absent, "GPUSTEWARD_TENANT=blue"}, lines: 1},
		{name: "off", argv: []string{load, "--kernel-us", "10", "--steps", "10"}, env: []string{"GPUSTEWARD_SOCKET=" + absent, "GPUSTEWARD_OFF=1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, test.argv[0], test.argv[1:]...)
			cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LD_PRELOAD=" + so, "LD_LIBRARY_PATH=" + stub}, test.env...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, &stderr)
			}
			if got := strings.Count(stderr.String(), "\n"); got != test.lines {
				t.Errorf("%d lines on standard error, want %d:\n%s", got, test.lines, &stderr)
			}
		})
	}
}
