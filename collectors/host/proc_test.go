package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// writeProcess writes a process into a tree that looks like /proc.
func writeProcess(t testing.TB, root string, pid int, start uint64, cgroup string) {
	t.Helper()
	dir := filepath.Join(root, fmt.Sprint(pid))
	files := map[string]string{
		"stat": fmt.Sprintf("%d (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 10 1 18446744073709551615 "+
			"1 1 1 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n", pid, start),
		"status":  "Name:\ta) b\nUid:\t1000\t0\t0\t0\n",
		"cgroup":  cgroup,
		"cmdline": "slurmstepd: [7.0]\x00",
		"environ": "A=1\x00B=x=y\x00A=2\x00C",
	}
	fixture.Must(t, os.MkdirAll(dir, 0o755))
	for name, content := range files {
		fixture.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	fixture.Must(t, os.WriteFile(filepath.Join(root, "stat"), []byte("cpu 1 2 3 4\nbtime 1700000000\n"), 0o644))
}

func TestProcFS(t *testing.T) {
	root := t.TempDir()
	writeProcess(t, root, 7, 250, "0::/a.slice/a.service\n")
	proc := fixture.Value(ProcFS(root))(t)
	h := fixture.Value(proc.Open(7))(t)
	defer h.Close()
	want := Facts{Start: 250, Began: time.Unix(1700000002, 5e8), UID: 1000, Comm: "a) b",
		Cgroup: "0::/a.slice/a.service\n"}
	f, err := h.Facts()
	fixture.Contains(t, f.Began.String(), " m=",
		"its start has no monotonic reading, so it moves when the clock is set")
	if f.Began = f.Began.Round(0); err != nil || !f.Began.Equal(want.Began) {
		t.Errorf("it began at %v, %v", f.Began, err)
	}
	if f.Began = want.Began; f != want {
		t.Errorf("%+v", f)
	}
	if e, err := h.Environ("A", "B", "C", "D"); err != nil || len(e) != 3 || e["A"] != "1" || e["B"] != "x=y" {
		t.Errorf("%q, %v", e, err)
	}
	fixture.Equal(t, fixture.Value(h.Title())(t), "slurmstepd: [7.0]", "its title is")
	for _, pid := range []int{8, 0, -1} {
		fixture.Equal(t, errors.Is(fixture.Error(proc.Open(pid)), ErrGone), true, "that it is gone")
	}
	if _, err := ProcFS(filepath.Join(root, "none")); err == nil {
		t.Error("no error without a procfs")
	}
}

// TestEnvironmentThatHangs gives one up in time, as that of a process whose memory is locked.
func TestEnvironmentThatHangs(t *testing.T) {
	root := t.TempDir()
	writeProcess(t, root, 7, 1, "0::/\n")
	writeProcess(t, root, 8, 1, "0::/\n")
	pipe := filepath.Join(root, "7/environ")
	fixture.Must(t, errors.Join(os.Remove(pipe), unix.Mkfifo(pipe, 0o600)))
	proc := fixture.Value(ProcFS(root))(t)
	for pid, want := range map[int]string{7: "it took longer than 2s", 8: ""} {
		h := fixture.Value(proc.Open(pid))(t)
		defer h.Close()
		found, err := h.Environ("A")
		fixture.Equal(t, found["A"] == "1", want == "", "found %v of %d", found, pid)
		if want != "" {
			fixture.Fails(t, err, want, "reading it")
		}
	}
}

func TestHandleStaysWithItsProcess(t *testing.T) {
	root := t.TempDir()
	writeProcess(t, root, 7, 1, "0::/\n")
	proc := fixture.Value(ProcFS(root))(t)
	h := fixture.Value(proc.Open(7))(t)
	defer h.Close()
	os.RemoveAll(filepath.Join(root, "7"))
	writeProcess(t, root, 7, 2, "0::/\n")
	if _, err := h.Facts(); h.Alive() || !errors.Is(err, ErrGone) {
		t.Errorf("alive after its PID was reused: %v", err)
	}
	fixture.Equal(t, errors.Is(fixture.Error(h.Environ("A")), ErrGone), true, "that it is gone")
}

func TestProcessVanishesDuringRead(t *testing.T) {
	for _, missing := range []string{"stat", "status", "cgroup"} {
		root := t.TempDir()
		writeProcess(t, root, 7, 1, "0::/\n")
		proc := fixture.Value(ProcFS(root))(t)
		os.Remove(filepath.Join(root, "7", missing))
		_, err := NewTable(Options{Proc: proc}).Lookup(7)
		if err == nil || missing == "stat" && !errors.Is(err, ErrGone) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

func TestRealProcess(t *testing.T) {
	proc, err := ProcFS("/proc")
	if err != nil {
		t.Skip(err)
	}
	command := exec.Command("cat")
	command.Env = []string{"SLURM_JOB_USER=ada"}
	in, _ := command.StdinPipe()
	out, _ := command.StdoutPipe()
	before := time.Now()
	if err := command.Start(); err != nil {
		t.Skip(err)
	}
	// Its environment can be read once the program runs, which its answer shows.
	fixture.Must(t, fixture.Error(in.Write([]byte("x"))))
	fixture.Must(t, fixture.Error(out.Read(make([]byte, 1))))
	pid := command.Process.Pid
	table := NewTable(Options{Proc: proc})
	p, err := table.Lookup(pid)
	if err != nil || p.UID != os.Getuid() || p.Start == 0 || p.Began.Sub(before).Abs() > 5*time.Second {
		t.Errorf("%+v, %v", p, err)
	}
	if e, err := environOf(proc, p, "SLURM_JOB_USER"); err != nil || e["SLURM_JOB_USER"] != "ada" {
		t.Errorf("%v, %v", e, err)
	}
	command.Process.Kill()
	command.Wait()
	if _, err := table.Lookup(pid); !errors.Is(err, ErrGone) || len(table.InUse()) != 0 {
		t.Error(err)
	}
}
