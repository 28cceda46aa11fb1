package suspend

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// init is the child process of the tests of Guards: it says which signals it gets. SIGUSR2
// starts a thread, and SIGTERM makes it fault.
func init() {
	if os.Getenv("GS_GUARDED") == "" {
		return
	}
	got := make(chan os.Signal, 16)
	signal.Notify(got, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM)
	fmt.Println("ready")
	for s := range got {
		switch s {
		case syscall.SIGUSR2:
			started := make(chan bool)
			go func() { runtime.LockOSThread(); close(started); select {} }()
			<-started
		case syscall.SIGTERM:
			var nothing *int
			*nothing = 1
		}
		fmt.Println(s)
	}
}

// A child is such a process.
type child struct {
	*exec.Cmd
	t   *testing.T
	out *bufio.Scanner
	err strings.Builder
}

func guarded(t *testing.T) *child {
	t.Helper()
	c := &child{Cmd: exec.Command(os.Args[0]), t: t}
	c.Env = append(os.Environ(), "GS_GUARDED=1")
	c.Stderr = &c.err
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	c.out = bufio.NewScanner(out)
	c.says("ready")
	return c
}

func (c *child) says(want string) {
	c.t.Helper()
	if !c.out.Scan() || c.out.Text() != want {
		c.t.Fatalf("it says %q instead of %q; %s", c.out.Text(), want, c.err.String())
	}
}

func (c *child) send(s syscall.Signal) {
	c.t.Helper()
	if err := c.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// tracers returns by how many threads those of the process are traced; 0: some are not.
func (c *child) tracers() int {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", c.Process.Pid))
	by := map[int]bool{}
	for _, task := range all {
		var tid int
		_, _ = fmt.Sscan(filepath.Base(task), &tid)
		by[tracer(c.Process.Pid, tid)] = true
	}
	if by[0] {
		return 0
	}
	return len(by)
}

func (c *child) state() string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:min(1, len(rest))]
}

// TestAGuardedProcessNoticesNothing sends signals to a process, and has it start threads,
// while it is guarded and afterwards.
func TestAGuardedProcessNoticesNothing(t *testing.T) {
	t.Parallel()
	c, g := guarded(t), Guards{}
	pid := c.Process.Pid
	for range 2 {
		if err := g.Take(pid); err != nil || !g.Has(pid) || c.tracers() != 1 {
			t.Fatalf("%v, guarded: %v, by %d threads", err, g.Has(pid), c.tracers())
		}
		c.send(syscall.SIGUSR1)
		c.says("user defined signal 1")
		for range 8 {
			c.send(syscall.SIGUSR2)
			c.says("user defined signal 2")
		}
		eventually(t, "a new thread is traced", func() bool { return c.tracers() == 1 })
		c.send(syscall.SIGSTOP)
		eventually(t, "it is stopped", func() bool { s := c.state(); return s == "t" || s == "T" })
		c.send(syscall.SIGUSR1)
		c.send(syscall.SIGCONT)
		c.says("user defined signal 1")
	}
	g.Give(pid)
	eventually(t, "nothing traces it", func() bool { return c.tracers() == 0 })
	c.send(syscall.SIGUSR1)
	c.says("user defined signal 1")
	if g.Has(pid) || g.Holds(pid) {
		t.Error("it is still guarded")
	}
}

// TestAProcessThatFaultsByItselfEnds holds nothing but a fault in the driver's library.
func TestAProcessThatFaultsByItselfEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sends syscall.Signal
		says  string
	}{{syscall.SIGTERM, "nil pointer dereference"}, {syscall.SIGSEGV, "SIGSEGV"}} {
		e, g := guarded(t), Guards{}
		pid := e.Process.Pid
		if err := g.Take(pid); err != nil {
			t.Fatal(err)
		}
		e.send(c.sends)
		eventually(t, "it ends", func() bool { return !g.Has(pid) })
		if e.out.Scan() {
			t.Errorf("it says %q", e.out.Text())
		}
		if _ = e.Wait(); !strings.Contains(e.err.String(), c.says) {
			t.Errorf("it ends otherwise: %v, %s", e.ProcessState, e.err.String())
		}
		g.Keep(nil)
	}
}

// TestOneGuardIsEnough refuses a process that is traced, and one that has ended.
func TestOneGuardIsEnough(t *testing.T) {
	t.Parallel()
	c, first, second := guarded(t), Guards{}, Guards{}
	pid := c.Process.Pid
	if err := first.Take(pid); err != nil {
		t.Fatal(err)
	}
	if err := second.Take(pid); err == nil || second.Has(pid) || c.tracers() != 1 {
		t.Errorf("it is guarded twice: %v", err)
	}
	first.Keep(map[int]bool{pid: true})
	if !first.Has(pid) {
		t.Error("it is given up")
	}
	first.Keep(nil)
	if err := second.Take(pid); err != nil {
		t.Errorf("it is not guarded: %v", err)
	}
	_ = c.Process.Kill()
	eventually(t, "it has ended", func() bool { return !second.Has(pid) })
	if err := first.Take(1 << 30); err == nil {
		t.Error("nobody is guarded")
	}
}
