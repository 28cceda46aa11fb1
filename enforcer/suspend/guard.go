package suspend

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Guards protect processes while the driver has their GPU state. Its library then faults
// in a thread that asks what its GPU has done, or waits for that: cuStreamSynchronize, for
// instance. A guard holds such a thread at the faulting instruction. Once the state is back,
// the thread executes that instruction again.
//
// A guard traces the threads (ptrace), and stops none of them. A process that is traced by
// somebody else, such as a debugger, cannot be guarded. The zero value guards nothing yet.
// Methods may be called concurrently.
type Guards struct {
	mu  sync.Mutex
	all map[int]*guard
}

// Take guards a process from now on, if it is not guarded yet.
func (g *Guards) Take(pid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.all[pid]; one != nil && !one.over() {
		return nil
	}
	one := &guard{pid: pid, threads: map[int]bool{}, asks: make(chan chan bool), release: make(chan struct{}),
		ended: make(chan struct{})}
	begun := make(chan error, 1)
	go one.run(begun)
	if err := <-begun; err != nil {
		<-one.ended
		one.forgets() // it may have traced some of the threads
		return fmt.Errorf("process %d cannot be guarded: %w", pid, err)
	}
	if g.all == nil {
		g.all = map[int]*guard{}
	}
	g.all[pid] = one
	return nil
}

// Holds reports whether a guarded process has a thread that waits for the GPU.
func (g *Guards) Holds(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	if one == nil {
		return false
	}
	answer := make(chan bool)
	select {
	case one.asks <- answer:
		return <-answer
	case <-one.ended:
		return false
	}
}

// Has reports whether a process is guarded.
func (g *Guards) Has(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	return one != nil && !one.over()
}

// Give lets the threads of a process go on that are held, and guards it no longer.
func (g *Guards) Give(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.all[pid]; one != nil {
		delete(g.all, pid)
		close(one.release)
		<-one.ended
		one.forgets()
	}
}

// Keep gives all processes but some.
func (g *Guards) Keep(some map[int]bool) {
	g.mu.Lock()
	var gone []int
	for pid := range g.all {
		if !some[pid] {
			gone = append(gone, pid)
		}
	}
	g.mu.Unlock()
	for _, pid := range gone {
		g.Give(pid)
	}
}

// A guard is that of one process. Its threads belong to its run.
type guard struct {
	pid     int
	tid     int            // of the thread that traces it
	threads map[int]bool   // that are traced; true: it is held
	asks    chan chan bool // whether a thread is held
	release chan struct{}  // closed to end it
	ended   chan struct{}  // closed when it has
}

func (g *guard) over() bool {
	select {
	case <-g.ended:
		return true
	default:
		return false
	}
}

// forgets waits until the tracing thread has ended, and the process may be traced again. The
// kernel does not tell when that is.
func (g *guard) forgets() {
	for late := time.Now().Add(time.Second); unix.Tgkill(unix.Getpid(), g.tid, 0) == nil && time.Now().Before(late); {
		time.Sleep(50 * time.Microsecond)
	}
}

// run traces the process from a thread of its own. That thread ends with it, and the kernel
// then lets go of the process without stopping it.
func (g *guard) run(begun chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the first thread would not end
		go g.run(begun) // on another one
		<-g.ended
		runtime.UnlockOSThread()
		return
	}
	defer close(g.ended)
	g.tid = unix.Gettid()
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGCHLD)
	defer signal.Stop(changed)
	err := g.seize()
	begun <- err
	if err != nil {
		return
	}
	for g.look() {
		select {
		case <-changed:
			_ = g.seize() // a thread that ended before it told which one it started
		case answer := <-g.asks:
			g.look() // a thread may just have faulted
			answer <- len(g.held()) > 0
		case <-g.release:
			g.look()
			for _, tid := range g.held() {
				goOn(tid, 0)
			}
			return
		}
	}
}

func (g *guard) held() (tids []int) {
	for tid, held := range g.threads {
		if held {
			tids = append(tids, tid)
		}
	}
	return tids
}

// seize traces all threads that are not known. Those that they start later are traced, too.
func (g *guard) seize() error {
	for more := true; more; {
		more = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", g.pid))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if _, known := g.threads[tid]; known {
				continue
			}
			switch err := trace(unix.PTRACE_SEIZE, tid, 0, unix.PTRACE_O_TRACECLONE); {
			case errors.Is(err, unix.ESRCH): // it has ended
			case errors.Is(err, unix.EPERM):
				switch by, ending := tracer(g.pid, tid); {
				case by == g.tid:
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
	}
	if len(g.threads) == 0 {
		return unix.ESRCH
	}
	return nil
}

// tracer returns the thread that traces another, and whether that other one has ended or is
// about to.
func tracer(pid, tid int) (by int, ending bool) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid)) // none: it has ended
	_, state, _ := bytes.Cut(status, []byte("\nState:\t"))
	_, rest, _ := bytes.Cut(status, []byte("\nTracerPid:"))
	_, _ = fmt.Sscan(string(rest), &by)
	return by, len(state) == 0 || state[0] == 'Z' || state[0] == 'X'
}

// look deals with all threads that have stopped. It returns false once the process has
// ended.
func (g *guard) look() bool {
	for again := true; again; {
		again = false
		for tid := range g.threads {
			var status unix.WaitStatus
			// One by one: this thread may be the parent of other processes.
			switch got, err := unix.Wait4(tid, &status, unix.WNOHANG|unix.WALL, nil); {
			case errors.Is(err, unix.EINTR):
				again = true
			case err != nil:
				delete(g.threads, tid)
			case got == tid:
				again = true
				g.stopped(tid, status)
			}
		}
	}
	return len(g.threads) > 0
}

// stopped deals with a thread that has stopped or ended.
func (g *guard) stopped(tid int, status unix.WaitStatus) {
	sig, event := status.StopSignal(), int(status)>>16
	switch {
	case !status.Stopped():
		delete(g.threads, tid)
	case event == unix.PTRACE_EVENT_CLONE:
		if started, err := unix.PtraceGetEventMsg(tid); err == nil {
			g.threads[int(started)] = false
		}
		goOn(tid, 0)
	case event == unix.PTRACE_EVENT_STOP && sig != unix.SIGTRAP: // a signal stops the process
		_ = trace(unix.PTRACE_LISTEN, tid, 0, 0) // as in goOn
	case event != 0:
		goOn(tid, 0)
	case (sig == unix.SIGSEGV || sig == unix.SIGBUS) && g.inDriver(tid):
		g.threads[tid] = true
	default:
		goOn(tid, sig)
	}
}

// inDriver reports whether a thread that gets a signal faulted in the driver's library.
func (g *guard) inDriver(tid int) bool {
	var info [128]byte
	var regs unix.PtraceRegs
	const codeAt, prstatus = 8, 1
	if trace(unix.PTRACE_GETSIGINFO, tid, 0, uintptr(unsafe.Pointer(&info))) != nil {
		return false
	}
	if code := *(*int32)(unsafe.Pointer(&info[codeAt])); code <= 0 {
		return false // somebody sent it
	}
	vector := unix.Iovec{Base: (*byte)(unsafe.Pointer(&regs)), Len: uint64(unsafe.Sizeof(regs))}
	if trace(unix.PTRACE_GETREGSET, tid, prstatus, uintptr(unsafe.Pointer(&vector))) != nil {
		return false
	}
	process, err := procfs.NewProc(g.pid)
	if err != nil {
		return false
	}
	maps, _ := process.ProcMaps() // none: it is ending
	return slices.ContainsFunc(maps, func(m *procfs.ProcMap) bool {
		driver, _ := path.Match("libcuda.so*", path.Base(m.Pathname))
		return driver && uint64(m.StartAddr) <= regs.PC() && regs.PC() < uint64(m.EndAddr)
	})
}

// goOn lets a thread go on that has stopped, with a signal or with 0.
func goOn(tid int, sig unix.Signal) {
	_ = unix.PtraceCont(tid, int(sig)) // it fails if the thread was killed meanwhile
}

// trace makes a call of ptrace.
//
//go:uintptrescapes
func trace(request, tid int, address, data uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), address, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
