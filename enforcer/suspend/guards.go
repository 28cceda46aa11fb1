package suspend

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
)

// maxGuarded bounds the guarded processes, each of which takes a thread.
const maxGuarded = 256

// Guards protect processes while the driver has their GPU state. Its library then faults
// in a thread that asks what its GPU has done, or waits for that, as in cuStreamSynchronize.
// A guard holds such a thread at the faulting instruction. Once the state is back, the
// thread executes that instruction again.
//
// A guard traces the threads (ptrace) from a thread of its own. While a process executes a
// program that its file system does not provide, the kernel blocks a guard that begins to trace
// it. No caller waits for such a guard; it guards once the kernel lets it go. Guards take turns,
// and each handles a bounded number of signals a turn: a process with more signals slows only
// itself down. A process that something else traces, such as a debugger, cannot be
// guarded. The zero value guards nothing yet, and nil never does. Methods may be called concurrently.
type Guards struct {
	mu   sync.Mutex // no holder waits for anything
	all  map[int]*guard
	turn sync.Mutex // likewise; its holder looks
}

// Take guards a process from now on, if it is not guarded yet. A party (procs.Whose) has no more guards
// than are free: a user can have any number of workloads.
func (g *Guards) Take(pid int) error {
	of := procs.Whose("/proc", pid)
	for {
		one, ends, err := g.one(pid, of)
		switch {
		case err != nil:
		case ends: // an earlier guard does, and the next may begin then
			if err = one.await(one.gone); err == nil {
				continue
			}
		default:
			if err = one.await(one.begun); err == nil {
				err = one.err
			}
		}
		if err != nil {
			return fmt.Errorf("process %d cannot be guarded: %w", pid, err)
		}
		return nil
	}
}

// one returns the guard of a process, and whether it is ending. It begins a guard if there is
// none.
func (g *Guards) one(pid int, of string) (one *guard, ends bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.all[pid]; one != nil {
		return one, one.ends(), nil
	}
	ofIts := 0
	for _, other := range g.all {
		if other.of == of {
			ofIts++
		}
	}
	if free := maxGuarded - len(g.all); ofIts >= free {
		return nil, false, fmt.Errorf("%d processes of its owner have guards, and %d are free", ofIts, free)
	}
	one = &guard{pid: pid, of: of, threads: map[int]bool{}, wake: make(chan struct{}, 1), begun: make(chan struct{}),
		ended: make(chan struct{}), gone: make(chan struct{})}
	if g.all == nil {
		g.all = map[int]*guard{}
	}
	g.all[pid] = one
	go g.guard(one)
	go g.vanish(one)
	return one, false, nil
}

// Look waits until the guards have looked at their processes, so that Holds knows of a thread that
// waited for the GPU when Look was called.
func (g *Guards) Look() {
	g.each(func(one *guard) {
		looked := make(chan struct{})
		g.mu.Lock()
		one.looks = append(one.looks, looked)
		g.mu.Unlock()
		one.rouse()
		_ = one.await(looked) // a guard that the kernel holds sees nothing
	})
}

// each does something with all guards at the same time.
func (g *Guards) each(do func(*guard)) {
	if g == nil {
		return
	}
	var done sync.WaitGroup
	g.mu.Lock()
	for _, one := range g.all {
		done.Go(func() { do(one) })
	}
	g.mu.Unlock()
	done.Wait()
}

// Holds reports whether a guarded process has a thread that waits for the GPU, as its guard
// last saw it.
func (g *Guards) Holds(pid int) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	return one != nil && !one.given.Load() && one.holds.Load()
}

// Has reports whether a process is guarded.
func (g *Guards) Has(pid int) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	return one != nil && one.guards()
}

// Give lets the held threads of a process continue, and ends its guard.
func (g *Guards) Give(pid int) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.all[pid]; one != nil {
		one.give()
	}
}

// Keep ends the guards of all processes except some.
func (g *Guards) Keep(some map[int]bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for pid, one := range g.all {
		if !some[pid] {
			one.give()
		}
	}
}

// Close ends all guards, and waits until the kernel has let go of their processes. It does not
// wait for guards that the kernel holds: they end with this process.
func (g *Guards) Close() {
	g.Keep(nil)
	g.each(func(one *guard) { _ = one.await(one.gone) })
}

// vanish waits for the end of a guard's thread, and until its process may be traced again. The
// kernel does not tell when that is.
func (g *Guards) vanish(one *guard) {
	<-one.ended
	tid := int(one.tid.Load())
	for late := time.Now().Add(time.Second); unix.Tgkill(unix.Getpid(), tid, 0) == nil && time.Now().Before(late); {
		time.Sleep(50 * time.Microsecond)
	}
	g.mu.Lock()
	delete(g.all, one.pid)
	g.mu.Unlock()
	close(one.gone)
}

// guard is a guard's thread. When it ends, the kernel lets go of its process without stopping it.
func (g *Guards) guard(one *guard) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the first thread would not end
		go g.guard(one) // on another one
		<-one.ended
		runtime.UnlockOSThread()
		return
	}
	defer close(one.ended)
	one.tid.Store(int64(unix.Gettid()))
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGCHLD)
	defer signal.Stop(changed)
	one.begin()
	for {
		last := one.given.Load()
		if one.unsure && !last {
			_ = one.seize() // what it could not trace is tried again
		}
		g.mu.Lock()
		looks := one.looks
		one.looks = nil
		g.mu.Unlock()
		g.turn.Lock()
		if last {
			one.leave()
		}
		more := one.look()
		g.turn.Unlock()
		for _, looked := range looks {
			close(looked)
		}
		switch {
		case last:
			return
		case more:
			continue
		case len(one.threads) == 0:
			one.over.Store(true)
			return
		}
		select {
		case <-changed:
		case <-one.wake:
		}
	}
}
