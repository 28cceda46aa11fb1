package suspend

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// init is the child process of the tests of Guards: it says which signals it gets. SIGUSR2
// starts threads, SIGTERM makes it fault, SIGHUP ends its first thread, SIGALRM has it start
// threads until it ends, and SIGWINCH execute a program.
func init() {
	if os.Getenv("GS_GUARDED") == "" {
		return
	}
	got := make(chan os.Signal, 16)
	signal.Notify(got, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGALRM,
		syscall.SIGWINCH)
	fmt.Println("ready")
	obey(got)
}

// thread is one that ends with its function, after it has started another.
func thread() {
	runtime.LockOSThread()
	go thread()
}

func obey(got chan os.Signal) {
	for s := range got {
		switch s {
		case syscall.SIGUSR2:
			threads(8)
		case syscall.SIGTERM:
			var nothing *int
			*nothing = 1
		case syscall.SIGWINCH:
			fmt.Println(s)
			go execute(os.Getenv("GS_EXECUTED"))
			continue // no thread can start meanwhile, which Go's runtime does not survive
		case syscall.SIGALRM:
			for range 4 {
				go thread()
			}
		case syscall.SIGHUP:
			go obey(got)
			_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // init runs in the first thread
		}
		fmt.Println(s)
	}
}

// threads starts threads at once.
func threads(n int) {
	var all sync.WaitGroup
	all.Add(n)
	for range n {
		go func() { runtime.LockOSThread(); all.Done(); select {} }()
	}
	all.Wait()
}

// execute executes a program. Unlike syscall.Exec, it does not keep a processor of the scheduler's from others.
func execute(path string) {
	name, _ := syscall.BytePtrFromString(path)
	var none [1]*byte
	args := uintptr(unsafe.Pointer(&none))
	_, _, _ = syscall.Syscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(name)), args, args)
}

// A child is such a process.
type child struct {
	*exec.Cmd
	t   *testing.T
	out *bufio.Scanner
	end *os.File // that the test reads
	err strings.Builder
}

func guarded(t *testing.T) *child {
	t.Helper()
	c := &child{Cmd: exec.Command(os.Args[0]), t: t}
	c.Env = append(os.Environ(), "GS_GUARDED=1")
	c.Stderr = &c.err
	c.end = fixture.Value(c.StdoutPipe())(t).(*os.File)
	fixture.Must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	c.out = bufio.NewScanner(c.end)
	c.says("ready")
	return c
}

func (c *child) says(want string) {
	c.t.Helper()
	fixture.Must(c.t, c.end.SetReadDeadline(time.Now().Add(3*time.Minute))) // it may hang
	if !c.out.Scan() || c.out.Text() != want {
		c.t.Fatalf("it says %q instead of %q: %v; %s", c.out.Text(), want, c.out.Err(), c.err.String())
	}
}

func (c *child) send(s syscall.Signal) {
	c.t.Helper()
	fixture.Must(c.t, c.Process.Signal(s))
}

// tracers returns by how many threads those of processes are traced; 0: some are not.
func tracers(children ...*child) int {
	by := map[int]bool{}
	for _, c := range children {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", c.Process.Pid))
		for _, task := range all {
			var tid int
			_, _ = fmt.Sscan(filepath.Base(task), &tid)
			if tracer, ending := tracedBy(c.Process.Pid, tid); !ending {
				by[tracer] = true
			}
		}
	}
	if by[0] {
		return 0
	}
	return len(by)
}

// freed reports whether none of its threads is traced.
func (c *child) freed() bool {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", c.Process.Pid))
	return !slices.ContainsFunc(all, func(path string) bool {
		status, _ := os.ReadFile(path)
		return len(status) > 0 && !strings.Contains(string(status), "TracerPid:\t0\n")
	})
}

func (c *child) state() string { return string(procs.State("/proc", c.Process.Pid)) }

// took reports whether no signal waits for its first thread, which sleeps.
func (c *child) took() bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	return c.state() == "S" && bytes.Contains(status, []byte("\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n"))
}

// TestAGuardedProcessNoticesNothing sends signals to a process, and has it start threads,
// while it is guarded and afterwards.
func TestAGuardedProcessNoticesNothing(t *testing.T) {
	t.Parallel()
	c, g := guarded(t), Guards{}
	pid := c.Process.Pid
	for range 2 {
		if err := g.Take(pid); err != nil || !g.Has(pid) || tracers(c) != 1 {
			t.Fatalf("%v, guarded: %v, by %d threads", err, g.Has(pid), tracers(c))
		}
		c.send(syscall.SIGUSR1)
		c.says("user defined signal 1")
		for range 8 {
			c.send(syscall.SIGUSR2)
			c.says("user defined signal 2")
		}
		fixture.Eventually(t, "a new thread is traced", func() bool { return tracers(c) == 1 })
		c.send(syscall.SIGSTOP)
		fixture.Eventually(t, "it is stopped", func() bool { s := c.state(); return s == "t" || s == "T" })
		c.send(syscall.SIGUSR1)
		c.send(syscall.SIGCONT)
		c.says("user defined signal 1")
	}
	g.Give(pid)
	fixture.Eventually(t, "it is free", c.freed)
	c.send(syscall.SIGUSR1)
	c.says("user defined signal 1")
	fixture.If(t, g.Has(pid) || g.Holds(pid), "it is still guarded")
}

// TestAThreadGuardsEach guards processes, and gives one of them, which is stopped then and stays
// so. It may be guarded again, as all may once they were given.
func TestAThreadGuardsEach(t *testing.T) {
	t.Parallel()
	all, g := []*child{guarded(t), guarded(t), guarded(t)}, Guards{}
	t.Cleanup(g.Close)
	one, pid := all[0], all[0].Process.Pid
	works := func() {
		t.Helper()
		for _, c := range all {
			c.send(syscall.SIGUSR2)
			c.says("user defined signal 2")
		}
	}
	for range 2 {
		for _, c := range all {
			fixture.Must(t, g.Take(c.Process.Pid))
		}
		fixture.Equal(t, tracers(all...), 3, "threads that trace")
		works()
		one.send(syscall.SIGSTOP)
		fixture.Eventually(t, "it is stopped", func() bool { s := one.state(); return s == "t" || s == "T" })
		g.Give(pid)
		fixture.Eventually(t, "it is free", func() bool { return !g.Has(pid) && one.freed() })
		fixture.Equal(t, tracers(all[1:]...), 2, "threads that trace the others")
		fixture.Eventually(t, "it stays stopped", func() bool { return one.state() == "T" })
		one.send(syscall.SIGCONT)
		works()
		fixture.Must(t, g.Take(pid))
		works()
		g.Close()
		fixture.Equal(t, all[1].freed(), true, "the last ones are free:")
		works()
	}
}

// TestAProgramThatIsNeverExecuted has processes execute a program of which the kernel never reads
// all, and lets nobody begin to trace them until then. Only their guards wait for that.
func TestAProgramThatIsNeverExecuted(t *testing.T) {
	elf := make([]byte, 64)
	copy(elf, "\x7fELF\x02\x01\x01")
	elf[16], elf[18], elf[20], elf[33], elf[54], elf[56] = 2, 62, 1, 16, 56, 1 // its headers are on the next page
	if runtime.GOARCH == "arm64" {
		elf[18] = 183
	}
	path, held, letGo := fixture.Stuck(t, elf)
	t.Setenv("GS_EXECUTED", path)
	g, before, after, own, hostile := Guards{}, guarded(t), guarded(t), guarded(t), guarded(t)
	t.Cleanup(letGo) // before their ends are awaited
	pid := hostile.Process.Pid
	take := func(c *child) error { return g.Take(c.Process.Pid) }
	fixture.Must(t, take(before))
	fixture.Must(t, take(own)) // which executes it later
	for n, c := range []*child{own, hostile} {
		c.send(syscall.SIGWINCH)
		c.says("window changed")
		fixture.Eventually(t, "it executes a program", func() bool { return held() == n+1 })
	}
	guards := func(all ...*child) {
		t.Helper()
		g.Look()
		for _, c := range all {
			if c == own {
				c.send(syscall.SIGURG)
				fixture.Eventually(t, "its guard passes the signal on", c.took)
			} else {
				c.send(syscall.SIGUSR1)
				c.says("user defined signal 1")
			}
			fixture.Eventually(t, "a thread guards it", func() bool { return tracers(c) == 1 })
		}
	}
	for range 2 {
		if err := take(hostile); !errors.Is(err, errHeld) || g.Has(pid) {
			t.Errorf("who cannot be traced is guarded: %v, %v", err, g.Has(pid))
		}
		fixture.Must(t, take(after))
		guards(before, own, after)
		g.Give(pid) // the next guard does not begin before this one ends
	}
	one := g.all[pid]
	fixture.Equal(t, one.witness.Held(fmt.Sprintf("/proc/self/task/%d", one.tid.Load())), true, "it is known that it is held:")
	fixture.Equal(t, len(g.all), 4, "guards")
	g.Close() // waits for the others alone
	fixture.Equal(t, before.freed() && own.freed() && after.freed(), true, "the others are free:")
	letGo()
	fixture.Eventually(t, "it is not held", func() bool { return take(hostile) == nil })
	guards(hostile)
	g.Close()
}

// TestGuardsForAll has a workload with as many guards as are free, which gets no more.
func TestGuardsForAll(t *testing.T) {
	t.Parallel()
	c, g := guarded(t), Guards{all: map[int]*guard{}}
	for _, of := range []string{procs.Whose("/proc", c.Process.Pid), "another"} {
		for n := range maxGuarded / 2 {
			g.all[-n] = &guard{of: of}
		}
		fixture.Equal(t, g.Take(c.Process.Pid) == nil, of == "another", "beside those of %s it has a guard", of)
	}
	g.Give(c.Process.Pid)
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
		fixture.Must(t, g.Take(pid))
		e.send(c.sends)
		fixture.Eventually(t, "it ends", func() bool { return !g.Has(pid) })
		if e.out.Scan() {
			t.Errorf("it says %q", e.out.Text())
		}
		_ = e.Wait()
		fixture.Contains(t, e.err.String(), c.says, "it ends otherwise: %v", e.ProcessState)
		g.Close()
	}
}

// TestAProcessEndsWhileItStartsThreads kills processes that are guarded. Some have
// then started a thread of which the guard was not told.
func TestAProcessEndsWhileItStartsThreads(t *testing.T) {
	t.Parallel()
	for range 30 {
		c, g := guarded(t), Guards{}
		t.Cleanup(g.Close) // before its end is awaited
		pid := c.Process.Pid
		fixture.Must(t, g.Take(pid))
		c.send(syscall.SIGALRM)
		c.says("alarm clock")
		_ = c.Process.Kill()
		fixture.Eventually(t, "it ends", func() bool { return !g.Has(pid) })
		_ = c.Wait()
	}
}

// TestAnEndedThreadNeedsNoGuard guards a process whose first thread has ended.
func TestAnEndedThreadNeedsNoGuard(t *testing.T) {
	t.Parallel()
	c, g := guarded(t), Guards{}
	c.send(syscall.SIGHUP)
	fixture.Eventually(t, "its first thread has ended", func() bool { return c.state() == "Z" })
	if err := g.Take(c.Process.Pid); err != nil || !g.Has(c.Process.Pid) || tracers(c) != 1 {
		t.Errorf("%v, by %d threads", err, tracers(c))
	}
	c.send(syscall.SIGUSR1)
	c.says("user defined signal 1")
	g.Close()
}

// TestOneGuardIsEnough refuses a process that is traced, and one that has ended. The process
// can be guarded again once it was given up.
func TestOneGuardIsEnough(t *testing.T) {
	t.Parallel()
	c, first, second := guarded(t), new(Guards), new(Guards)
	pid := c.Process.Pid
	fixture.Must(t, first.Take(pid))
	if err := second.Take(pid); err == nil || second.Has(pid) || tracers(c) != 1 {
		t.Errorf("it is guarded twice: %v", err)
	}
	first.Keep(map[int]bool{pid: true})
	fixture.If(t, !first.Has(pid), "it is given up")
	for range 20 {
		first.Close()
		err := second.Take(pid)
		fixture.Stop(t, err != nil, "it is not guarded: %v", err)
		first, second = second, first
	}
	first, second = second, first
	_ = c.Process.Kill()
	fixture.Eventually(t, "it has ended", func() bool { return !second.Has(pid) })
	for _, pid := range []int{pid, 1 << 30} { // nobody has waited for the first
		fixture.If(t, first.Take(pid) == nil || first.Has(pid), "%d, which is nobody, is guarded", pid)
	}
}
