package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
	"gpusteward/internal/stack"
)

// sleeper returns the PID of a process that sleeps until the test ends.
func sleeper(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return strconv.Itoa(cmd.Process.Pid)
}

func TestStack(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	status, out, _ := gpusteward(t, "stack", "--json", pid)
	var p stack.Process
	if err := json.Unmarshal([]byte(out), &p); err != nil || status != 0 || strconv.Itoa(p.PID) != pid ||
		len(p.Threads) != 1 {
		t.Errorf("exit status %d, %v:\n%s", status, err, out)
	}
	kernel := t.TempDir() // a procfs of another PID namespace
	fixture.Must(t, os.Symlink("1", filepath.Join(kernel, "self")))
	for name, c := range map[string]struct {
		args      []string
		status    int
		out, errs string
	}{
		"a process":      {[]string{pid}, 0, "process " + pid + " (", ""},
		"no process":     {[]string{"2147483646"}, 1, "", "there is no process 2147483646"},
		"another procfs": {[]string{"--path.procfs=" + kernel, pid}, 1, "", "another PID namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, out, errs := gpusteward(t, append([]string{"stack"}, c.args...)...)
			if status != c.status || !strings.HasPrefix(out, c.out) || !strings.Contains(errs, c.errs) {
				t.Errorf("exit status %d, want %d:\n%s%s", status, c.status, out, errs)
			}
		})
	}
}

// TestStackOfUnreadableProcess reads a process without memory, as the kernel
// reports it.
func TestStackOfUnreadableProcess(t *testing.T) {
	t.Parallel()
	procfs := t.TempDir()
	line := []byte("7 (rank) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20")
	task := filepath.Join(procfs, "7", "task", "7")
	fixture.Must(t, errors.Join(os.MkdirAll(task, 0o755),
		os.Symlink(strconv.Itoa(os.Getpid()), filepath.Join(procfs, "self")),
		os.WriteFile(filepath.Join(procfs, "7", "stat"), line, 0o644),
		os.WriteFile(filepath.Join(task, "stat"), line, 0o644),
		os.WriteFile(filepath.Join(procfs, "7", "maps"), nil, 0o644)))
	status, out, errs := gpusteward(t, "stack", "--path.procfs="+procfs, "7")
	if status != 1 || errs != "not all of it was read\n" ||
		!strings.HasPrefix(out, "process 7 (rank), 1 thread\nnot all of it was read: process 7 has no") {
		t.Errorf("exit status %d:\n%s%s", status, out, errs)
	}
}
