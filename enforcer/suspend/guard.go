package suspend

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
	"gpusteward/internal/worker"
)

// Bounds of what a guard does in one turn.
const (
	signalsALook = 64
	listsALook   = 8 // of its threads, while it starts others
)

// A guard guards one process, from a thread of its own. That thread calls the methods and owns
// the fields, unless their comments say otherwise.
type guard struct {
	pid     int
	of      string            // whose process it is; constant
	driver  []*procfs.ProcMap // where the driver's library is
	threads map[int]bool      // that are traced; true: it is held
	unsure  bool              // there may be others
	left    bool              // each thread is let go when it stops

	wake    chan struct{}   // something was asked of it
	begun   chan struct{}   // closed when it guards, or cannot
	err     error           // why it cannot, then
	given   atomic.Bool     // it is to leave, or cannot guard
	holds   atomic.Bool     // a thread is held
	over    atomic.Bool     // the process has ended, or could not be guarded
	looks   []chan struct{} // closed once it has looked: of Guards.mu
	tid     atomic.Int64    // of its thread
	ended   chan struct{}   // closed when its thread ends
	gone    chan struct{}   // closed when the kernel has let go of the process
	witness worker.Witness  // of what the kernel does with its thread
}

// guards reports whether the process is guarded. Anybody may call it.
func (g *guard) guards() bool {
	select {
	case <-g.begun:
		return !g.ends()
	default:
		return false
	}
}

// ends reports whether the guard is about to end. Anybody may call it.
func (g *guard) ends() bool { return g.given.Load() || g.over.Load() }

// give tells the guard to leave. Anybody may call it.
func (g *guard) give() {
	g.given.Store(true)
	g.rouse()
}

var errHeld = errors.New("the kernel blocks its guard, as it does while the process executes a program")

// await waits until something is done, or the guard ends. It fails if the kernel holds the
// guard's thread. Anybody may call it.
func (g *guard) await(done <-chan struct{}) error {
	look := time.NewTicker(worker.LookEvery)
	defer look.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-g.gone:
			return nil
		default:
		}
		if g.witness.Held(fmt.Sprintf("/proc/self/task/%d", g.tid.Load())) {
			return errHeld
		}
		select {
		case <-done:
		case <-g.gone:
		case <-look.C:
		}
	}
}

// rouse tells the guard to look again. Anybody may call it.
func (g *guard) rouse() {
	select {
	case g.wake <- struct{}{}:
	default: // it is about to, anyway
	}
}

// begin guards the process.
func (g *guard) begin() {
	g.driver = library(g.pid)
	if g.err = g.seize(); g.err != nil {
		g.over.Store(true)
		g.given.Store(true) // some of the threads may be traced
	}
	close(g.begun)
}

// leave lets go of the threads that are held. The end of the guard's thread lets go of the
// others, and stops none of them.
func (g *guard) leave() {
	g.left = true
	for tid, held := range g.threads {
		if held {
			g.goOn(tid, 0)
		}
	}
}

// seize traces all threads that are not known. Threads that these start later are traced, too.
func (g *guard) seize() error {
	g.unsure = true
	for range listsALook {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", g.pid))
		if err != nil {
			g.unsure = false
			return err
		}
		more := false
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if _, known := g.threads[tid]; known {
				continue
			}
			if g.given.Load() { // while the kernel held it
				return unix.ECANCELED
			}
			switch err := ptrace(unix.PTRACE_SEIZE, tid, 0, unix.PTRACE_O_TRACECLONE); {
			case errors.Is(err, unix.ESRCH): // it has ended
			case errors.Is(err, unix.EPERM):
				switch by, ending := tracedBy(g.pid, tid); {
				case by == unix.Gettid():
					g.threads[tid] = false // started by one that is traced
				case !ending:
					return err
				}
			case err != nil:
				return err
			default:
				g.threads[tid], more = false, true
			}
		}
		if !more {
			g.unsure = false
			break
		}
	}
	if len(g.threads) == 0 {
		return unix.ESRCH
	}
	return nil
}

// tracedBy returns the thread that traces another, and whether that other one has ended or is
// about to.
func tracedBy(pid, tid int) (by int, ending bool) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid)) // none: it has ended
	if tracer := procs.StatusLine(status, "TracerPid"); len(tracer) > 0 {
		by, _ = strconv.Atoi(tracer[0])
	}
	state := procs.StatusLine(status, "State")
	return by, len(state) == 0 || state[0] == "Z" || state[0] == "X"
}

// look handles threads that have stopped, and reports whether it must be called again. If not,
// and if no thread is left, the process has ended or is free. look never waits.
func (g *guard) look() (again bool) {
	signals, known := 0, len(g.threads)
	for tid := range g.threads {
		var status unix.WaitStatus
		// One thread at a time: this thread may be the parent of other processes.
		switch got, err := unix.Wait4(tid, &status, unix.WNOHANG|unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
			again = true
		case err != nil:
			g.forget(tid)
		case got == tid:
			g.stopped(tid, status)
			signals++
		}
		if signals == signalsALook {
			again = true
			break
		}
	}
	held := false
	for _, one := range g.threads {
		held = held || one
	}
	g.holds.Store(held)
	// A thread that is new was possibly not looked at, and what it reported is reported once.
	return again || g.unsure || len(g.threads) > known
}

// forget forgets a thread that has ended, possibly before it reported a thread that it started.
func (g *guard) forget(tid int) {
	delete(g.threads, tid)
	g.unsure = true
}

// stopped handles a thread that has stopped or ended.
func (g *guard) stopped(tid int, status unix.WaitStatus) {
	sig, event := status.StopSignal(), int(status)>>16
	switch {
	case !status.Stopped():
		g.forget(tid)
	case event == unix.PTRACE_EVENT_CLONE:
		if started, err := unix.PtraceGetEventMsg(tid); err == nil {
			g.threads[int(started)] = false
		}
		g.goOn(tid, 0)
	case event == unix.PTRACE_EVENT_STOP && sig != unix.SIGTRAP && !g.left: // a signal stops the process
		_ = ptrace(unix.PTRACE_LISTEN, tid, 0, 0) // as in goOn
	case event != 0:
		g.goOn(tid, 0)
	case (sig == unix.SIGSEGV || sig == unix.SIGBUS) && g.inDriver(tid):
		if g.threads[tid] = true; g.left { // the state is back
			g.goOn(tid, 0)
		}
	default:
		g.goOn(tid, sig)
	}
}

// inDriver reports whether a thread that gets a signal faulted in the driver's library.
func (g *guard) inDriver(tid int) bool {
	var info [128]byte
	var regs unix.PtraceRegs
	const codeAt, prstatus = 8, 1
	if ptrace(unix.PTRACE_GETSIGINFO, tid, 0, uintptr(unsafe.Pointer(&info))) != nil {
		return false
	}
	if code := *(*int32)(unsafe.Pointer(&info[codeAt])); code <= 0 {
		return false // the signal was sent by a process
	}
	vector := unix.Iovec{Base: (*byte)(unsafe.Pointer(&regs)), Len: uint64(unsafe.Sizeof(regs))}
	if ptrace(unix.PTRACE_GETREGSET, tid, prstatus, uintptr(unsafe.Pointer(&vector))) != nil {
		return false
	}
	return slices.ContainsFunc(g.driver, func(m *procfs.ProcMap) bool {
		return uint64(m.StartAddr) <= regs.PC() && regs.PC() < uint64(m.EndAddr)
	})
}

// library returns where a process has the driver's library.
func library(pid int) []*procfs.ProcMap {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return nil // it has ended
	}
	all, _ := process.ProcMaps() // none: it is ending
	return slices.DeleteFunc(all, func(m *procfs.ProcMap) bool {
		driver, _ := path.Match("libcuda.so*", path.Base(m.Pathname))
		return !driver
	})
}

// goOn lets a stopped thread continue, with a signal or with 0.
func (g *guard) goOn(tid int, sig unix.Signal) {
	if !g.left {
		_ = unix.PtraceCont(tid, int(sig)) // it fails if the thread was killed meanwhile
	} else if ptrace(unix.PTRACE_DETACH, tid, 0, uintptr(sig)) == nil {
		delete(g.threads, tid) // otherwise its end is still to come
	}
}

// ptrace makes a call of ptrace.
//
//go:uintptrescapes
func ptrace(request, tid int, address, data uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), address, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
