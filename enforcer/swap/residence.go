package swap

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/residency"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/wire"
)

// restAfter is the time, at a tick of a second, from a suspension that failed to the next one of the workload.
const restAfter = 10 * time.Minute

// residence decides which workloads have their memory on the GPUs, and has the suspender carry
// that out. It owns what is remembered of them. Run's goroutine calls look; the broker's sessions
// fill the queue.
type residence struct {
	*Options
	suspender *suspend.Suspender

	stays  map[audit.Subject]stay      // of those on their GPUs
	wanted map[audit.Subject]time.Time // when a suspended workload was first seen to use the GPU
	failed map[audit.Subject]time.Time // when a suspension failed
	use    uses
	moves  map[string]*move // by UUID
	stats  []wire.OvercommitStats
	queue  queue

	returning map[audit.Subject]bool // workloads whose memory is about to come back
	waits     []audit.Subject        // for memory of an overcommitted GPU
}

func newResidence(o *Options, by *suspend.Suspender) residence {
	return residence{Options: o, suspender: by, stays: map[audit.Subject]stay{}, wanted: map[audit.Subject]time.Time{},
		failed: map[audit.Subject]time.Time{}, use: uses{}, moves: map[string]*move{},
		queue: queue{all: map[waiter]*waiting{}}, returning: map[audit.Subject]bool{}}
}

// A stay is a workload's time on its GPUs.
type stay struct {
	since time.Time // when it was first seen there, came back, or last grew
	bytes uint64    // of its memory then
}

// growth is the factor by which a workload's memory must grow for its stay to begin anew, so that a
// workload that waited for most of its memory gets a whole turn. A stay begins anew a bounded
// number of times.
const growth = 1.25

// A move is how long the last suspension and the last resumption on a GPU took.
type move struct{ suspend, resume time.Duration }

// idle returns how long a workload has not used its GPUs; false if that is
// unknown of one of its processes.
func (r *residence) idle(now time.Time, c *candidate) (least time.Duration, known bool) {
	least = time.Duration(1<<63 - 1)
	for _, p := range c.processes {
		traced, hooked := r.Jobs.Idle(p.PID)
		if hooked {
			least = min(least, traced)
		}
		if u := r.use[p.Target]; u != nil && (c.sampled || !hooked) {
			least = min(least, now.Sub(u.last))
		}
		if !hooked && !c.sampled {
			return 0, false
		}
	}
	return least, true
}

// look decides which workloads stay on the GPUs, and orders it.
func (r *residence) look(now time.Time, b audit.Books) {
	r.use.look(now, r.ProcFS, b.DeviceProcesses, r.suspender.Records(), r.suspender.Guard.Holds)
	all := map[audit.Subject]*candidate{}
	for _, c := range candidates(b, r.suspender.Records()) {
		all[c.Subject] = c
	}
	s := r.state(now, b, all)
	r.waits = r.waits[:0]
	for _, q := range s.Requests {
		r.waits = append(r.waits, q.Subject)
	}
	r.overcommit(s)
	r.forget(s.Workloads)
	r.order(now, b, all, residency.Decide(s))
	// On a GPU that is not overcommitted no workload gives way: it waits for room, and is shown to wait.
	for _, w := range s.Workloads {
		if w.Phase == residency.Suspended && w.Wants && !r.shared(w.Bytes) && !r.suspender.Waits(w.Subject) {
			_ = r.suspender.Resume(now, w.Subject, "it uses the GPU again") // its record is there
		}
	}
	for _, one := range r.suspender.Records() {
		r.join(now, one, all[one.Subject()].joining(one))
	}
}

// state returns the input of a decision.
func (r *residence) state(now time.Time, b audit.Books, all map[audit.Subject]*candidate) residency.State {
	s := residency.State{Now: now, Tick: r.Tick, GPUs: map[string]residency.GPU{}, Requests: r.requests(now, b)}
	for _, c := range all {
		if _, away := r.suspender.Record(c.Subject); !away {
			s.Workloads = append(s.Workloads, r.resident(now, c, s.Requests))
		}
	}
	for _, one := range r.suspender.Records() {
		s.Workloads = append(s.Workloads, r.absent(now, one, all[one.Subject()].joining(one)))
	}
	know := func(uuid string) {
		if _, known := s.GPUs[uuid]; !known {
			s.GPUs[uuid] = r.gpu(uuid, b)
		}
	}
	for _, g := range b.GPUs { // also without workloads, so that their statistics do not end
		know(g.GPU)
	}
	for _, w := range s.Workloads {
		for uuid := range w.Bytes {
			know(uuid)
		}
	}
	for _, q := range s.Requests {
		know(q.GPU)
	}
	return s
}

// order has the suspender carry out a decision.
func (r *residence) order(now time.Time, b audit.Books, all map[audit.Subject]*candidate, orders []residency.Order) {
	// Before memory comes back, the books must keep it: no allocation may take it.
	for _, o := range orders {
		if !o.Suspend {
			r.returning[o.Subject] = true
		}
	}
	if len(r.returning) > 0 {
		r.Reserve(b)
	}
	for _, o := range orders {
		switch {
		case o.Suspend:
			r.giveWay(now, all[o.Subject], o.Why)
		case r.suspender.Waits(o.Subject):
			r.suspender.Retry(now, o.Subject)
		default:
			_ = r.suspender.Resume(now, o.Subject, o.Why) // its record is there
		}
	}
	clear(r.returning)
}

// join begins to suspend processes that started in a suspended workload. Where no
// GPU is overcommitted and the workload gave way, their memory is not needed, and they go on.
func (r *residence) join(now time.Time, one suspend.Record, c *candidate) {
	needed := !one.Yields || r.shared(suspend.Record{Processes: c.processes}.Bytes())
	failed, is := r.failed[one.Subject()]
	if one.Phase != suspend.Suspended || len(c.processes) == 0 || !needed || is && now.Sub(failed) < r.Tick.Of(restAfter) {
		return
	}
	err := c.suspendable(r.suspender, r.Jobs)
	if err == nil {
		err = r.suspender.Join(now, one.Subject(), c.processes)
	}
	if err != nil {
		r.failed[one.Subject()] = now
		r.Log.Warn("new processes of a suspended workload cannot be suspended, and go on; this is tried again in 10 minutes",
			"tenant", one.Tenant, "workload", one.Workload, "reason", suspend.ReasonOf(err), "err", err)
	}
}

// shared reports whether one of the GPUs, by UUID, is overcommitted.
func (r *residence) shared(gpus map[string]uint64) bool {
	for uuid := range gpus {
		if r.overcommitted(uuid) {
			return true
		}
	}
	return false
}

// giveWay begins to suspend a workload that comes back when it uses the GPU.
func (r *residence) giveWay(now time.Time, c *candidate, why string) {
	log := r.Log.With("tenant", c.Tenant, "workload", c.Workload, "why", why)
	for _, p := range c.processes { // from now on, a call of the driver may wait
		if u := r.use[p.Target]; u != nil {
			u.first, _ = waits(r.ProcFS, p.PID) // none is known: each that waits later may do so for the driver
		}
	}
	if err := r.suspender.GiveWay(now, c.Subject, c.processes, why); err != nil {
		r.failed[c.Subject] = now
		log.Warn("a workload cannot give way; this is tried again in 10 minutes", "reason", suspend.ReasonOf(err), "err", err)
		return
	}
	log.Info("a workload gives way: its GPU memory moves to the host until it uses the GPU again")
}

// requests returns the allocations that wait, by workload. Nobody gives way for a process
// that is on no GPU.
func (r *residence) requests(now time.Time, b audit.Books) (requests []residency.Request) {
	listed := map[waiter]bool{}
	for _, h := range b.DeviceProcesses {
		listed[waiter{h.Process.PID, h.UUID}] = true
	}
	for _, w := range r.queue.requests(now) {
		of := audit.Subject{Tenant: w.Tenant, Workload: fmt.Sprint("pid:", w.PID)}
		p, err := r.Process(w.PID)
		if err != nil {
			continue // it has ended
		}
		if p.Workload != nil {
			of.Workload = p.Workload.Key
		}
		if one, away := r.suspender.Record(of); away && one.Yields {
			r.want(of, w.since)
			continue // first it comes back
		}
		if !listed[waiter{w.PID, w.GPU}] {
			continue
		}
		requests = append(requests, residency.Request{Subject: of, GPU: w.GPU, Bytes: w.Bytes, Since: w.since,
			Priority: r.Policy().Priority(w.Tenant)})
	}
	return requests
}

func (r *residence) want(of audit.Subject, since time.Time) {
	if r.wanted[of].IsZero() {
		r.wanted[of] = since
	}
}

// resident returns a workload on its GPUs.
func (r *residence) resident(now time.Time, c *candidate, requests []residency.Request) residency.Workload {
	t := r.Policy()
	bytes := suspend.Record{Processes: c.processes}.Bytes()
	if s, known := r.stays[c.Subject]; !known || float64(sum(bytes)) > growth*float64(s.bytes) {
		r.stays[c.Subject] = stay{now, sum(bytes)}
	}
	failed, is := r.failed[c.Subject]
	w := residency.Workload{Subject: c.Subject, Since: r.stays[c.Subject].since, Priority: t.Priority(c.Tenant),
		Bytes: bytes, Reclaim: t.Reclaim(c.Tenant),
		Fixed: c.mps || r.Stopped(c.Subject) || is && now.Sub(failed) < r.Tick.Of(restAfter), Says: r.says(c),
		Guaranteed: map[string]uint64{}}
	w.Idle, w.Known = r.idle(now, c)
	if slices.ContainsFunc(requests, func(q residency.Request) bool { return q.Subject == c.Subject }) {
		w.Idle, w.Known = 0, true // it waits for memory
	}
	for uuid := range w.Bytes {
		w.Guaranteed[uuid] = t.Quota(c.Tenant, uuid).Reserved
	}
	return w
}

// says returns what the processes of a workload say that stands against its suspension.
func (r *residence) says(c *candidate) residency.Word {
	var kinds wire.Shared
	for _, p := range c.processes {
		kinds |= r.Jobs.Shared(p.PID)
	}
	switch kinds {
	case 0:
		return residency.Nothing
	case wire.SharedManaged:
		return residency.Stays
	}
	return residency.Shares
}

// absent returns a workload that is suspended, or on its way. Some of its processes may
// have started since.
func (r *residence) absent(now time.Time, s suspend.Record, fresh *candidate) residency.Workload {
	w := residency.Workload{Subject: s.Subject(), Phase: residency.Moving, Since: s.Since, Bytes: s.Bytes(),
		Priority: r.Policy().Priority(s.Tenant)}
	switch {
	case s.Phase == suspend.Suspended:
		w.Phase = residency.Suspended
		if s.Yields && (len(fresh.processes) > 0 || r.woke(now, s)) {
			r.want(s.Subject(), now)
		}
		w.Since = r.wanted[s.Subject()]
		w.Wants = s.Yields && !w.Since.IsZero() // it may have been ordered to stay away since it wanted
	case r.suspender.Waits(s.Subject()): // for room
		w.Phase, w.Wants = residency.Suspended, s.Phase == suspend.Resuming
	}
	return w
}

// woke reports whether a suspended workload tried to use a GPU.
func (r *residence) woke(now time.Time, s suspend.Record) bool {
	for _, p := range s.Processes {
		if idle, known := r.Jobs.Idle(p.PID); known && now.Add(-idle).After(s.Began) {
			return true
		}
		if u := r.use[p.Target]; u != nil && u.stuck {
			return true
		}
	}
	return false
}

// gpu returns a GPU for a decision.
func (r *residence) gpu(uuid string, b audit.Books) (g residency.GPU) {
	g.Turn, g.Overcommit = r.Policy().Overcommitted(uuid)
	g.Free, _ = r.free(uuid)
	if size, known := r.size(uuid); known {
		g.Size = size
	}
	for _, t := range b.Tenants {
		if t.GPU == uuid {
			// allocations that are about to be made
			g.Free -= min(t.MemoryReserved-min(t.MemoryUnlisted, t.MemoryReserved), g.Free)
		}
	}
	if m := r.moves[uuid]; m != nil {
		g.Move = m.suspend + m.resume
	}
	return g
}

// moved notes how long a suspension or a resumption took.
func (r *residence) moved(now time.Time, end suspend.End) {
	of := end.Subject()
	if end.Err != nil {
		if end.Done == suspend.Suspended {
			r.failed[of] = now
		}
		return
	}
	for uuid := range end.Bytes() {
		if end.Joined {
			break
		}
		m := r.moves[uuid]
		if m == nil {
			m = &move{}
			r.moves[uuid] = m
		}
		if end.Done == suspend.Suspended {
			m.suspend = end.Took
		} else {
			m.resume = end.Took
		}
	}
	if end.Done == suspend.Resuming {
		r.stays[of] = stay{now, sum(end.Bytes())}
		delete(r.wanted, of)
	} else {
		delete(r.stays, of)
	}
}

// forget forgets workloads that are no longer there.
func (r *residence) forget(all []residency.Workload) {
	there := map[audit.Subject]bool{}
	for _, w := range all {
		there[w.Subject] = true
	}
	maps.DeleteFunc(r.stays, func(s audit.Subject, _ stay) bool { return !there[s] })
	for _, m := range []map[audit.Subject]time.Time{r.wanted, r.failed} {
		maps.DeleteFunc(m, func(s audit.Subject, _ time.Time) bool { return !there[s] })
	}
}

// overcommit keeps the statistics of overcommitted GPUs.
func (r *residence) overcommit(s residency.State) {
	r.stats = nil
	for uuid, g := range s.GPUs {
		if !g.Overcommit {
			continue
		}
		one := wire.OvercommitStats{GPU: uuid, Turn: g.Stay().Seconds()}
		waits := func(since time.Time) {
			one.Waiting++
			one.Longest = max(one.Longest, s.Now.Sub(since).Seconds())
		}
		for _, w := range s.Workloads {
			if w.Wants && w.Bytes[uuid] > 0 {
				waits(w.Since)
			}
		}
		for _, q := range s.Requests {
			if q.GPU == uuid {
				waits(q.Since)
			}
		}
		r.stats = append(r.stats, one)
	}
	slices.SortFunc(r.stats, func(x, y wire.OvercommitStats) int { return strings.Compare(x.GPU, y.GPU) })
}
