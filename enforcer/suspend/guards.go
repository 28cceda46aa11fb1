package suspend

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Guards protect processes while the driver has their GPU state. Its library then faults
// in a thread that asks what its GPU has done, or waits for that: cuStreamSynchronize, for
// instance. A guard holds such a thread at the faulting instruction. Once the state is back,
// the thread executes that instruction again.
//
// A guard traces the threads (ptrace). One thread of this program traces all of them, however
// many there are, and takes a bounded number of each process's signals a turn: a process that
// has more is slowed down, and delays nobody else. Only Take, Look and Close wait for that thread. A
// process that is traced by somebody else, such as a debugger, cannot be guarded. The zero
// value guards nothing yet. Methods may be called concurrently.
type Guards struct {
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

// Take guards a process from now on, if it is not guarded yet.
func (g *Guards) Take(pid int) error {
	if g.Has(pid) {
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
	<-one.begun
	if one.err != nil {
		return fmt.Errorf("process %d cannot be guarded: %w", pid, one.err)
	}
	return nil
}

// Look waits until the tracer has looked at all processes, so that Holds knows of a thread that
// waited for the GPU when Look was called.
func (g *Guards) Look() {
	g.mu.Lock()
	if g.tracer == nil || g.tracer.ending {
		g.mu.Unlock()
		return
	}
	looked := make(chan struct{})
	g.turns = append(g.turns, looked)
	g.tracer.rouse()
	g.mu.Unlock()
	<-looked
}

// Holds reports whether a guarded process has a thread that waits for the GPU, as the tracer
// last saw it.
func (g *Guards) Holds(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	return one != nil && one.holds.Load()
}

// Has reports whether a process is guarded.
func (g *Guards) Has(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[pid]
	return one != nil && one.guards()
}

// Give has the threads of a process go on that are held, and guards it no longer.
func (g *Guards) Give(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.give(pid)
}

func (g *Guards) give(pid int) {
	if one := g.all[pid]; one != nil {
		delete(g.all, pid)
		one.given.Store(true)
		g.tracer.rouse()
	}
}

// Keep gives all processes but some.
func (g *Guards) Keep(some map[int]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for pid := range g.all {
		if !some[pid] {
			g.give(pid)
		}
	}
}

// Close gives all processes, and waits until the kernel has let go of them.
func (g *Guards) Close() {
	g.Keep(nil)
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
	<-t.ended
	for late := time.Now().Add(time.Second); unix.Tgkill(unix.Getpid(), t.tid, 0) == nil && time.Now().Before(late); {
		time.Sleep(50 * time.Microsecond)
	}
}

// trace is the tracer's thread.
func (g *Guards) trace(t *tracer) {
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
func (g *Guards) turn(t *tracer, traced map[int]*guard) (fresh []*guard, turns []chan struct{}, last bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh, turns, g.fresh, g.turns = g.fresh, g.turns, nil, nil
	t.ending = len(fresh) == 0
	for _, one := range traced {
		t.ending = t.ending && one.given.Load()
	}
	return fresh, turns, t.ending
}
