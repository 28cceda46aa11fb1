package suspend

import (
	"fmt"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
)

// Guards protect processes while the driver has their GPU state. Its library then faults
// in a thread that asks what its GPU has done, or waits for that: cuStreamSynchronize, for
// instance. A guard holds such a thread at the faulting instruction. Once the state is back,
// the thread executes that instruction again.
//
// A guard traces the threads (ptrace). One thread of this program traces all those of an owner,
// a user or a cgroup of root's, and takes a bounded number of each process's signals a turn: a
// process that has more is slowed down, and delays nobody else. A process can have the kernel
// hold whoever begins to trace it; that is then its owner's loss, as Take, Look and Close wait
// for a bounded time. A process that is traced by somebody else, such as a debugger, cannot be
// guarded. The zero value guards nothing yet. Methods may be called concurrently.
type Guards struct {
	mu  sync.Mutex
	all map[string]*guards // by owner
	of  map[int]*guards    // by PID
}

const (
	maxTracers = 32              // owners that have guarded processes at a time, each a thread
	traceable  = 2 * time.Second // to begin to trace a process, or to look at all
)

// Take guards a process from now on, if it is not guarded yet.
func (g *Guards) Take(pid int) error {
	owner := procs.Whose("/proc", pid)
	g.mu.Lock()
	used := slices.Collect(maps.Values(g.of))
	maps.DeleteFunc(g.all, func(_ string, of *guards) bool { return !slices.Contains(used, of) && of.idle() })
	of := g.all[owner]
	if of == nil && len(g.all) >= maxTracers {
		g.mu.Unlock()
		return fmt.Errorf("process %d cannot be guarded: processes of %d owners are", pid, maxTracers)
	}
	if of == nil {
		of = &guards{}
		if g.all == nil {
			g.all, g.of = map[string]*guards{}, map[int]*guards{}
		}
		g.all[owner] = of
	}
	if before := g.of[pid]; before != nil && before != of { // it has another user now
		of = before
	}
	g.of[pid] = of
	g.mu.Unlock()
	return of.take(pid)
}

// whose returns those with whom a process is guarded; they guard nothing if it is not.
func (g *Guards) whose(pid int) *guards {
	g.mu.Lock()
	defer g.mu.Unlock()
	if of := g.of[pid]; of != nil {
		return of
	}
	return &guards{}
}

// each does something with those of all owners at the same time.
func (g *Guards) each(do func(*guards)) {
	g.mu.Lock()
	all := slices.Collect(maps.Values(g.all))
	g.mu.Unlock()
	var done sync.WaitGroup
	for _, of := range all {
		done.Go(func() { do(of) })
	}
	done.Wait()
}

// Look waits until the tracers have looked at all processes, so that Holds knows of a thread
// that waited for the GPU when Look was called.
func (g *Guards) Look() { g.each((*guards).look) }

// Holds reports whether a guarded process has a thread that waits for the GPU, as its tracer
// last saw it.
func (g *Guards) Holds(pid int) bool { return g.whose(pid).holds(pid) }

// Has reports whether a process is guarded.
func (g *Guards) Has(pid int) bool { return g.whose(pid).has(pid) }

// Give has the threads of a process go on that are held, and guards it no longer.
func (g *Guards) Give(pid int) {
	g.whose(pid).keep(func(other int) bool { return other != pid })
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, pid)
}

// Keep gives all processes but some.
func (g *Guards) Keep(some map[int]bool) {
	g.each(func(of *guards) { of.keep(func(pid int) bool { return some[pid] }) })
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.of, func(pid int, _ *guards) bool { return !some[pid] })
}

// Close gives all processes, and waits until the kernel has let go of them.
func (g *Guards) Close() {
	g.Keep(nil)
	g.each((*guards).end)
}

// guards are those of an owner.
type guards struct {
	mu     sync.Mutex // nobody waits while he has it
	all    map[int]*guard
	fresh  []*guard        // that the tracer is to begin
	turns  []chan struct{} // closed once it has looked at all
	tracer *tracer         // the last one
}

// A tracer is the thread that traces. It exists while a process is guarded: when it ends, the
// kernel lets go of its processes without stopping them.
type tracer struct {
	before *tracer       // the one before it, which may still be ending
	wake   chan struct{} // something was given or is to be taken
	ending bool          // nothing was left to guard
	ended  chan struct{} // closed when it has
	tid    int           // once it has ended
}

// idle reports whether nothing is guarded.
func (g *guards) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all) == 0 && (g.tracer == nil || g.tracer.hasEnded())
}

func (t *tracer) hasEnded() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

func (g *guards) take(pid int) error {
	if g.has(pid) {
		return nil
	}
	driver := library(pid) // here, because a process may have many mappings
	g.mu.Lock()
	one := g.all[pid]
	if one == nil || one.over.Load() {
		one = &guard{pid: pid, driver: driver, threads: map[int]bool{}, begun: make(chan struct{})}
		if g.all == nil {
			g.all = map[int]*guard{}
		}
		g.all[pid], g.fresh = one, append(g.fresh, one)
		if g.tracer == nil || g.tracer.ending {
			g.tracer = &tracer{before: g.tracer, wake: make(chan struct{}, 1), ended: make(chan struct{})}
			go g.trace(g.tracer)
		}
		g.tracer.rouse()
	}
	g.mu.Unlock()
	select {
	case <-one.begun:
	case <-time.After(traceable):
		return fmt.Errorf("process %d cannot be guarded: another one of its owner's keeps who would trace it", pid)
	}
	if one.err != nil {
		return fmt.Errorf("process %d cannot be guarded: %w", pid, one.err)
	}
	return nil
}

func (g *guards) look() {
	g.mu.Lock()
	if g.tracer == nil || g.tracer.ending {
		g.mu.Unlock()
		return
	}
	looked := make(chan struct{})
	g.turns = append(g.turns, looked)
	g.tracer.rouse()
	g.mu.Unlock()
	select {
	case <-looked:
	case <-time.After(traceable):
	}
}

func (g *guards) holds(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	return one != nil && one.holds.Load()
}

func (g *guards) has(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	return one != nil && one.guards()
}

// keep gives all processes but some.
func (g *guards) keep(some func(pid int) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for pid, one := range g.all {
		if !some(pid) {
			delete(g.all, pid)
			one.given.Store(true)
			g.tracer.rouse()
		}
	}
}

// end waits until the kernel has let go of the processes.
func (g *guards) end() {
	g.mu.Lock()
	last := g.tracer
	g.mu.Unlock()
	last.gone()
}

// rouse has the tracer take another turn.
func (t *tracer) rouse() {
	select {
	case t.wake <- struct{}{}:
	default: // it is about to, anyway
	}
}

// gone waits until the thread has ended, and its processes may be traced again. The kernel
// does not tell when that is.
func (t *tracer) gone() {
	if t == nil {
		return
	}
	select {
	case <-t.ended:
	case <-time.After(traceable):
		return // this process's end ends it
	}
	for late := time.Now().Add(time.Second); unix.Tgkill(unix.Getpid(), t.tid, 0) == nil && time.Now().Before(late); {
		time.Sleep(50 * time.Microsecond)
	}
}

// trace is the tracer's thread.
func (g *guards) trace(t *tracer) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the first thread would not end
		go g.trace(t) // on another one
		<-t.ended
		runtime.UnlockOSThread()
		return
	}
	defer close(t.ended)
	t.before.gone()
	t.before, t.tid = nil, unix.Gettid()
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGCHLD)
	defer signal.Stop(changed)
	traced := map[int]*guard{}
	for {
		fresh, turns, last := g.turn(t, traced)
		for _, one := range fresh {
			one.begin(traced[one.pid])
			traced[one.pid] = one
		}
		more := false
		for pid, one := range traced {
			if one.given.Load() {
				one.leave(!last)
			}
			if one.look() {
				more = true
			} else if len(one.threads) == 0 {
				one.over.Store(true)
				delete(traced, pid)
			}
		}
		for _, looked := range turns {
			close(looked)
		}
		switch {
		case last:
			return
		case more:
			continue
		}
		select {
		case <-changed:
		case <-t.wake:
		}
	}
}

// turn returns the processes to begin with, who waits for the end of this turn, and whether it is
// the last.
func (g *guards) turn(t *tracer, traced map[int]*guard) (fresh []*guard, turns []chan struct{}, last bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh, turns, g.fresh, g.turns = g.fresh, g.turns, nil, nil
	t.ending = len(fresh) == 0
	for _, one := range traced {
		t.ending = t.ending && one.given.Load()
	}
	return fresh, turns, t.ending
}
