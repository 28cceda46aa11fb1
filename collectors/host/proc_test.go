package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
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
	for name, content := range files {
		fixture.Rewrite(t, filepath.Join(dir, name), content)
	}
	fixture.Rewrite(t, filepath.Join(root, "stat"), "cpu 1 2 3 4\nbtime 1700000000\n")
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
	f.Began = f.Began.Round(0)
	fixture.If(t, err != nil || !f.Began.Equal(want.Began), "it began at %v, %v", f.Began, err)
	f.Began = want.Began
	fixture.If(t, f != want, "%+v", f)
	if e, err := h.Environ("A", "B", "C", "D"); err != nil || len(e) != 3 || e["A"] != "1" || e["B"] != "x=y" {
		t.Errorf("%q, %v", e, err)
	}
	fixture.Equal(t, fixture.Value(h.Title())(t), "slurmstepd: [7.0]", "its title is")
	for _, pid := range []int{8, 0, -1} {
		fixture.Equal(t, errors.Is(fixture.Error(proc.Open(pid)), ErrGone), true, "that it is gone")
	}
	fixture.If(t, fixture.Error(ProcFS(filepath.Join(root, "none"))) == nil, "no error without a procfs")
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

// TestAProcessHoldsItsReaders asks for the facts of one that has the kernel hold who reads them.
func TestAProcessHoldsItsReaders(t *testing.T) {
	pids, _ := fixture.Executing(t, 1)
	h := fixture.Value(fixture.Value(ProcFS("/proc"))(t).Open(pids[0]))(t)
	defer h.Close()
	_, err := h.Facts()
	fixture.If(t, !errors.Is(err, procs.ErrHeld) || !h.Alive(), "its facts: %v", err)
}

func TestHandleStaysWithItsProcess(t *testing.T) {
	root := t.TempDir()
	writeProcess(t, root, 7, 1, "0::/\n")
	proc := fixture.Value(ProcFS(root))(t)
	h := fixture.Value(proc.Open(7))(t)
	defer h.Close()
	os.RemoveAll(filepath.Join(root, "7"))
	writeProcess(t, root, 7, 2, "0::/\n")
	_, err := h.Facts()
	fixture.If(t, h.Alive() || !errors.Is(err, ErrGone), "alive after its PID was reused: %v", err)
	fixture.Equal(t, errors.Is(fixture.Error(h.Environ("A")), ErrGone), true, "that it is gone")
}

func TestProcessVanishesDuringRead(t *testing.T) {
	for _, missing := range []string{"stat", "status", "cgroup"} {
		root := t.TempDir()
		writeProcess(t, root, 7, 1, "0::/\n")
		proc := fixture.Value(ProcFS(root))(t)
		os.Remove(filepath.Join(root, "7", missing))
		_, err := NewTable(Options{Proc: proc}).Lookup(7)
		fixture.If(t, err == nil || missing == "stat" && !errors.Is(err, ErrGone), "without %s: %v", missing, err)
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
	fixture.If(t, err != nil || p.UID != os.Getuid() || p.Start == 0 || p.Began.Sub(before).Abs() > 5*time.Second,
		"%+v, %v", p, err)
	if e, err := environOf(proc, p, "SLURM_JOB_USER"); err != nil || e["SLURM_JOB_USER"] != "ada" {
		t.Errorf("%v, %v", e, err)
	}
	command.Process.Kill()
	command.Wait()
	if _, err := table.Lookup(pid); !errors.Is(err, ErrGone) || len(table.InUse()) != 0 {
		t.Error(err)
	}
}

// asNobody calls f on a thread of an unprivileged user, which ends with f.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		_, _, failed := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
		for _, call := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
			if failed == 0 {
				_, _, failed = syscall.RawSyscall(call, 65534, 65534, 65534)
			}
		}
		if failed == 0 {
			f()
		}
		done <- failed
	}()
	fixture.Need(t, <-done, 0, "the failures are")
}

func TestHidden(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount procfs")
	}
	for options, want := range map[string]string{"": "", "hidepid=1": "hidepid=", "hidepid=2": "hidepid="} {
		dir, err := os.MkdirTemp("", "proc") // t.TempDir is closed to other users
		fixture.Must(t, err)
		t.Cleanup(func() { os.Remove(dir) })
		fixture.Must(t, os.Chmod(dir, 0o755))
		if err := syscall.Mount("proc", dir, "proc", 0, options); err != nil {
			t.Skip("cannot mount procfs here:", err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
		fixture.Must(t, Hidden(dir))
		asNobody(t, func() { err = Hidden(dir) })
		fixture.If(t, (err == nil) != (want == "") ||
			err != nil && (!strings.Contains(err.Error(), dir+" is mounted with "+want) ||
				!strings.Contains(err.Error(), "ProtectProc=default")), "%q: %v", options, err)
	}
	fixture.Must(t, Hidden(t.TempDir()))
}

const asStranger = "GPUSTEWARD_TEST_IN_A_PID_NAMESPACE"

// TestPIDsOfAnotherNamespaceAreRecognised lets a process ask in its own PID namespace, where its PID is not the one in
// the kernel's log. From outside, it has the PID that the kernel logs. The test needs root.
func TestPIDsOfAnotherNamespaceAreRecognised(t *testing.T) {
	if os.Getenv(asStranger) != "" {
		os.Stdout.WriteString("in it " + strconv.FormatBool(InitialPIDs()) + " " + strconv.Itoa(os.Getpid()) + "\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends it
		os.Exit(0)
	}
	if os.Getuid() != 0 {
		t.Skip("the test needs root")
	}
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || InitialPIDs() != (name == "pid:[4026531836]") {
		t.Errorf("in %s: %v, %v", name, InitialPIDs(), err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), asStranger+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	stdin := fixture.Value(cmd.StdinPipe())(t)
	stdout := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	line := make([]byte, 100)
	n, _ := stdout.Read(line)
	fixture.Equal(t, string(bytes.TrimSpace(line[:n])), "in it false 1", "the stranger says")
	proc := fixture.Value(ProcFS("/proc"))(t)
	if p, err := NewTable(Options{Proc: proc}).Lookup(cmd.Process.Pid); err != nil ||
		p.Comm != fmt.Sprintf("%.15s", filepath.Base(os.Args[0])) {
		t.Errorf("from outside it is %+v, %v", p, err)
	}
	stdin.Close()
	fixture.Must(t, cmd.Wait())
}
