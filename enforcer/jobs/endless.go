package jobs

import (
	"fmt"
	"time"

	"gpusteward/internal/wire"
)

// How work that does not end is found in a program that waits for no other process: in a training, a
// server or anything else, in a kernel or in a graph, on any stream.
//
//   - A thread waits for its GPU for patience, and for three times the longest wait that it ever had. While
//     something slows the GPU down, or did a moment ago, that is slowFor and ten times. A copy has more time, by its size.
//   - The thread has waited before, so often that its longest wait is known. One that waits for a kernel that runs
//     for ever by design waits for the first time, or never.
//   - A launch or a copy that does not return is such a wait. The driver may hold it behind work that fills its queue,
//     and the locks of the context with it. So the hook's own thread stands in its next call of the driver, and writes
//     no clock any more: the launch was the thread's last event, the clock stopped within clockStops, and the process
//     does not compute. Not found are launches beside which other threads go on.
//   - A process whose steps are known needs no such thread: it has kernelFor without a call.
//   - No thread of the process is held by a quota. Its main thread is not stopped, frozen or held by a debugger, and
//     reads from no disk.
//
// A rank of a communicator may wait for another rank: hang.go judges it.

// A waiter is a thread that waits for its GPU now and then.
type waiter struct {
	thread  uint16
	since   int64      // its present wait began, CLOCK_MONOTONIC, ns; 0: it does not wait
	what    wire.Event // that began it
	ended   int        // waits
	longest time.Duration
	launch  int64 // its last event is a launch or a copy, at this time, likewise; 0: it is not
}

// waiters are known by their threads' places; of threads that share one, only the last.
type waiters [32]waiter

// note takes the begin or the end of a wait. held is when the process last stood still because of us.
func (all *waiters) note(e wire.Event, held int64) {
	w := &all[int(e.Thread)%len(all)]
	if w.thread != e.Thread {
		*w = waiter{thread: e.Thread}
	}
	switch e.Kind {
	case wire.EventWait, wire.EventCopying:
		w.since, w.what = e.At, e
	case wire.EventWaited, wire.EventCopied:
		if w.since > 0 {
			w.longest = max(w.longest, time.Duration(e.At-max(w.since, held)))
			w.ended++
		}
		w.since = 0
	default: // what ended the wait was lost
		w.since = 0
	}
	w.launch = 0
	if e.Kind == wire.EventLaunch || e.Kind == wire.EventGraph || e.Kind == wire.EventCopy {
		w.launch = e.At
	}
}

// begun returns when the thread's present wait began; 0: it does not wait.
func (w *waiter) begun(at int64, p *process) int64 {
	if w.launch > 0 && at-w.launch >= int64(lookFrom) && p.clock < w.launch+int64(clockStops) && !p.watch.computes() {
		return w.launch
	}
	return w.since
}

// endless returns the verdict on a process that waits for work that does not end; false: there is none.
func (p *process) endless(at int64) (v verdict, is bool) {
	v = verdict{culprit: p, reason: "kernel", rank: -1, group: []*process{p}, waiting: 1}
	if p.ended > 0 || !p.alone() || p.gated(at) || p.watch.stands() {
		return v, false
	}
	for i := range p.waiters {
		if w := &p.waiters[i]; w.overdue(at, p) && (v.since == 0 || w.begun(at, p) < v.since) {
			v.since, v.what = max(w.begun(at, p), p.held), w.stream()
		}
	}
	return v, v.since > 0 || p.taken > 0 && p.stuck(at) && p.waits(at) && p.quiet(at) >= kernelFor
}

// overdue reports whether the thread waits for longer than its work can take.
func (w *waiter) overdue(at int64, p *process) bool {
	since := w.begun(at, p)
	if since == 0 || w.ended < knownWaits {
		return false
	}
	longest := w.longest
	if w.since == 0 { // another thread may be the one that the driver holds
		for i := range p.waiters {
			longest = max(longest, p.waiters[i].longest)
		}
	}
	limit := max(patience, pauses*longest)
	if p.slowed > 0 && at-p.slowed <= int64(patience) {
		limit = max(slowFor, slowPauses*longest)
	}
	if w.since > 0 && w.what.Kind == wire.EventCopying {
		limit += time.Duration(float64(w.what.ID) * 64 / copyRate * 1e9)
	}
	return time.Duration(at-max(since, p.held)) > limit
}

// stream names the stream for which the wait is, by the last digits of its address; empty: it is not told.
func (w *waiter) stream() string {
	if handle := w.what.ID >> 8; w.since > 0 && w.what.Kind == wire.EventWait && handle > 0 {
		return fmt.Sprintf("a wait for the stream at ...%06x0", handle)
	}
	return ""
}
