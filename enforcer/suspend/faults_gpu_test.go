//go:build gpu

package suspend

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestGPUFaultsOfSuspended holds a thread that the driver's library faults in, because its
// process is suspended, gives the process its state back, and has the thread execute the
// same instruction again. It shows whether that mends the fault.
func TestGPUFaultsOfSuspended(t *testing.T) {
	for _, call := range []string{"none", "cuStreamQuery", "cuEventQuery", "cuEventElapsedTime", "cuStreamSynchronize",
		"cuEventSynchronize", "cuCtxSynchronize"} {
		t.Run(call, func(t *testing.T) {
			e := begin(t, 0, "calls.py", call)
			pid := e.cmd.Process.Pid
			count := func(order string) string {
				time.Sleep(200 * time.Millisecond)
				e.tell(order)
				if !e.out.Scan() {
					return "the process ended"
				}
				return strings.TrimPrefix(e.out.Text(), "count ")
			}
			g := watch(t, pid)
			s := suspender(t)
			s.suspend(t, e, listed(t, pid))
			before, during := count("begin"), count("count")
			held := g.report()
			s.resume(t, e)
			g.release()
			after, last := count("count"), count("count")
			t.Logf("%s: suspended %s, %s; held %q; resumed %s, %s; then %q", call, before, during, held, after, last, g.report())
			if strings.Contains(last, "ended") || after == last {
				t.Errorf("%s: the thread does not go on", call)
			}
			_ = e.cmd.Process.Kill()
			<-g.over
		})
	}
}

// A watcher traces the threads of a process, without stopping them, and holds those that
// fault.
type watcher struct {
	pid  int
	do   chan func()
	held []int
	said []string
	over chan struct{} // closed when the process has ended
}

func watch(t *testing.T, pid int) *watcher {
	t.Helper()
	g := &watcher{pid: pid, do: make(chan func()), over: make(chan struct{})}
	begun := make(chan error)
	go g.run(begun)
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	return g
}

// run belongs to one thread of the kernel, since the traced ones belong to it.
func (g *watcher) run(begun chan<- error) {
	runtime.LockOSThread()
	defer close(g.over)
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", g.pid))
	for _, entry := range threads {
		tid, _ := strconv.Atoi(entry.Name())
		if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, unix.PTRACE_O_TRACECLONE, 0, 0); e != 0 {
			err = errors.Join(err, fmt.Errorf("thread %d: %w", tid, e))
		}
	}
	begun <- err
	for err == nil {
		var status unix.WaitStatus
		switch tid, e := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil); {
		case e == unix.ECHILD:
			return
		case tid > 0:
			g.stopped(tid, status)
			continue
		}
		select {
		case f := <-g.do:
			f()
		case <-time.After(time.Millisecond):
		}
	}
}

func (g *watcher) stopped(tid int, status unix.WaitStatus) {
	switch event := uint32(status) >> 16; {
	case !status.Stopped():
		g.said = append(g.said, fmt.Sprintf("thread %d ended: %#x", tid, uint32(status)))
	case event == 0 && status.StopSignal() == unix.SIGSEGV && len(g.said) < 8:
		g.held = append(g.held, tid)
		g.said = append(g.said, g.fault(tid))
	case event == 0:
		_ = unix.PtraceCont(tid, int(status.StopSignal()))
	default:
		_ = unix.PtraceCont(tid, 0)
	}
}

// fault tells where a thread faulted.
func (g *watcher) fault(tid int) string {
	var regs unix.PtraceRegs
	var info [128]byte
	_ = unix.PtraceGetRegs(tid, &regs)
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info[0])), 0, 0)
	code := *(*int32)(unsafe.Pointer(&info[8]))
	at := *(*uint64)(unsafe.Pointer(&info[16]))
	var text [16]byte
	_, _ = unix.PtracePeekText(tid, uintptr(regs.PC()), text[:])
	return fmt.Sprintf("code %d (%v) at %#x in %s; pc %#x in %s: % x; %+v", code, e, at, g.mapping(at), regs.PC(), g.mapping(regs.PC()),
		text, regs)
}

// mapping returns the line of /proc/PID/maps that has an address.
func (g *watcher) mapping(at uint64) string {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", g.pid))
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n == 2 && from <= at && at < to {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	return "no mapping"
}

// within has the watcher's thread do something.
func (g *watcher) within(f func()) {
	done := make(chan struct{})
	g.do <- func() { f(); close(done) }
	<-done
}

func (g *watcher) report() (said []string) {
	g.within(func() { said, g.said = g.said, nil })
	return said
}

// release lets the held threads execute the instruction again at which they faulted.
func (g *watcher) release() {
	g.within(func() {
		for _, tid := range g.held {
			_ = unix.PtraceCont(tid, 0)
		}
		g.held = nil
	})
}
