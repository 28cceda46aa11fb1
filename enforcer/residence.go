package enforcer

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/residency"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/procs"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// Bounds of waits and moves. restAfter is at a tick of a second.
const (
	askAgain    = 200 * time.Millisecond // after which an allocation that waits is asked for again
	grantedFor  = 2 * time.Second        // for which one that was granted counts as waiting: the driver does not list it yet
	silentFor   = 15 * time.Second       // for which one counts unasked: on a busy host a program may lose the broker for seconds
	longestWait = 15 * time.Minute       // of an allocation; then it fails
	maxWaiting  = 4096                   // allocations
	restAfter   = 10 * time.Minute       // after a suspension that failed, until the next one of the workload
	maxThreads  = 1024                   // of a suspended process that are looked at
)

// futex is the number of the system call, as /proc/PID/task/TID/syscall has it.
var futex = map[string]string{"amd64": "202", "arm64": "98"}[runtime.GOARCH]

// residence is what the enforcer remembers about the workloads on the GPUs.
type residence struct {
	stays  map[audit.Subject]stay      // of those on their GPUs
	wanted map[audit.Subject]time.Time // when a suspended workload was first seen to use the GPU
	failed map[audit.Subject]time.Time // when a suspension failed
	use    map[action.Target]*use
	moves  map[string]*move // by UUID
	stats  []wire.OvercommitStats
	queue  queue

	returning map[audit.Subject]bool // workloads whose memory is about to come back
	waits     []audit.Subject        // for memory of an overcommitted GPU
}

func newResidence() residence {
	return residence{stays: map[audit.Subject]stay{}, wanted: map[audit.Subject]time.Time{},
		failed: map[audit.Subject]time.Time{}, use: map[action.Target]*use{}, moves: map[string]*move{},
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

// A use is what is known of a process's use of its GPUs.
type use struct {
	sm   float64 // seconds of the GPU's time
	last time.Time

	// Of a process that gives way: what its threads waited for, by TID, before it was
	// suspended and at the last look.
	first, before map[int]string
	stuck         bool // a thread waits that did not: for the driver
}

// A move is how long the last suspension and the last resumption on a GPU took.
type move struct{ suspend, resume time.Duration }

// A queue is the allocations that wait for room. Sessions of the broker fill it
// concurrently.
type queue struct {
	mu  sync.Mutex
	all map[waiter]*waiting
}

type waiter struct {
	pid int
	gpu string
}

type waiting struct {
	broker.Request
	since, asked time.Time
	granted      time.Time // zero: not since it was asked for
}

// later is broker.Options.Later.
func (e *Enforcer) later(r broker.Request) time.Duration {
	if _, is := e.terms.Load().Overcommitted(r.GPU); !is || e.Simulated {
		return 0
	}
	if size, known := e.size(r.GPU); !known || r.Bytes > size {
		return 0
	}
	now, q := time.Now(), &e.residence.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.all[waiter{r.PID, r.GPU}]
	switch {
	case w == nil && len(q.all) >= maxWaiting:
		return 0
	case w == nil:
		w = &waiting{Request: r, since: now}
		q.all[waiter{r.PID, r.GPU}] = w
	case now.Sub(w.since) > longestWait:
		delete(q.all, waiter{r.PID, r.GPU})
		return 0
	}
	w.asked, w.granted, w.Tenant, w.Bytes = now, time.Time{}, r.Tenant, max(w.Bytes, r.Bytes)
	return askAgain
}

// stays is broker.Options.Stays: no driver can suspend a process with unified memory.
func (e *Enforcer) stays(uuid string, pid int, kind wire.Kind) bool {
	_, is := e.terms.Load().Overcommitted(uuid)
	return is && !e.Simulated && (kind == wire.KindManaged || e.jobs.Shared(pid)&wire.SharedManaged != 0)
}

// grant notes that a process was granted memory of a GPU. If it waits for more, it asks again.
func (q *queue) grant(now time.Time, by waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.all[by]; w != nil && w.granted.IsZero() {
		w.granted = now
	}
}

// requests returns the allocations that wait, and forgets those that were granted or are no
// longer asked for.
func (q *queue) requests(now time.Time) (all []waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, w := range q.all {
		if now.Sub(w.asked) > silentFor || !w.granted.IsZero() && now.Sub(w.granted) > grantedFor {
			delete(q.all, key)
			continue
		}
		all = append(all, *w)
	}
	return all
}

// driverThread matches the names of the threads that the driver itself starts in a process.
var driverThread = regexp.MustCompile(`^cuda(-EvtHandlr|[0-9]{11})\n$`)

// waits returns on which futex each thread of a process waits, or for which other
// system call. It leaves out the driver's own threads. It fails if the kernel does not tell.
func waits(procfs string, pid int) (map[int]string, error) {
	dir := filepath.Join(procfs, strconv.Itoa(pid), "task")
	tasks, _ := os.ReadDir(dir)
	var names []string
	for _, task := range tasks[:min(len(tasks), maxThreads)] {
		if name, _ := os.ReadFile(filepath.Join(dir, task.Name(), "comm")); !driverThread.Match(name) {
			names = append(names, filepath.Join("task", task.Name(), "syscall"))
		}
	}
	calls, err := procs.ReadFiles(procfs, pid, names)
	all := map[int]string{}
	for name, text := range calls {
		tid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if f := strings.Fields(text); len(f) > 1 && f[0] == futex {
			all[tid] = "futex " + f[1]
		} else if len(f) > 0 {
			all[tid] = f[0]
		}
	}
	return all, err
}

// look notes whether a thread of a process that gave way, or is about to, waits for the
// driver: it waits on a futex on which it did not wait before, and still does at the next
// look. Measured on driver 580: so does each call of a process that is locked, and it takes
// no processor time. The driver's thread cuda-EvtHandlr does so as long as the process is
// locked.
func (u *use) look(procfs string, pid int) {
	now, err := waits(procfs, pid)
	if err != nil {
		return
	}
	if u.first == nil {
		u.first = now
	}
	for tid, what := range now {
		if strings.HasPrefix(what, "futex ") && u.before[tid] == what && u.first[tid] != what {
			u.stuck = true
		}
	}
	u.before = now
}

// observeUse notes which processes used their GPUs since the last look.
func (e *Enforcer) observeUse(now time.Time, all []collectors.DeviceProcess) {
	seen := map[action.Target]bool{}
	of := func(t action.Target) *use {
		u := e.residence.use[t]
		if u == nil {
			u = &use{last: now}
			e.residence.use[t] = u
		}
		return u
	}
	for _, r := range e.suspender.Records() {
		for _, p := range r.Processes {
			seen[p.Target] = true
			u := of(p.Target)
			u.last = now
			if r.Phase != suspend.Resuming && r.Yields {
				u.look(e.identities.procfs, p.PID)
				u.stuck = u.stuck || e.suspender.Guard.Holds(p.PID)
			} else {
				u.first, u.before, u.stuck = nil, nil, false
			}
		}
	}
	for _, h := range all {
		t := action.Target{PID: h.Process.PID, Start: h.Process.Start}
		u := of(t)
		if h.SM != u.sm { // on one of its GPUs, or the driver was reopened
			u.sm, u.last = h.SM, now
		}
		if !seen[t] { // a suspension may begin and end between two looks
			u.first, u.before, u.stuck = nil, nil, false
		}
		seen[t] = true
	}
	maps.DeleteFunc(e.residence.use, func(t action.Target, _ *use) bool { return !seen[t] })
}

// idle returns how long a workload has not used its GPUs; false if that is
// unknown of one of its processes.
func (e *Enforcer) idle(now time.Time, c *candidate) (least time.Duration, known bool) {
	least = time.Duration(1<<63 - 1)
	for _, p := range c.processes {
		traced, hooked := e.jobs.Idle(p.PID)
		if hooked {
			least = min(least, traced)
		}
		if u := e.residence.use[p.Target]; u != nil && (c.sampled || !hooked) {
			least = min(least, now.Sub(u.last))
		}
		if !hooked && !c.sampled {
			return 0, false
		}
	}
	return least, true
}

// reside decides which workloads stay on the GPUs, and orders it.
func (e *Enforcer) reside(now time.Time, b audit.Books) {
	if e.Simulated {
		return
	}
	e.observeUse(now, b.DeviceProcesses)
	all := map[audit.Subject]*candidate{}
	for _, c := range e.candidates() {
		all[c.Subject] = c
	}
	s := residency.State{Now: now, Tick: e.Tick, GPUs: map[string]residency.GPU{}}
	s.Requests = e.waitingFor(now)
	for _, c := range all {
		if _, away := e.suspender.Record(c.Subject); !away {
			s.Workloads = append(s.Workloads, e.resident(now, c, s.Requests))
		}
	}
	for _, r := range e.suspender.Records() {
		s.Workloads = append(s.Workloads, e.absent(now, r, all[r.Subject()].joining(r)))
	}
	know := func(uuid string) {
		if _, known := s.GPUs[uuid]; !known {
			s.GPUs[uuid] = e.overcommitted(uuid, b)
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
	for _, r := range s.Requests {
		know(r.GPU)
	}
	e.residence.waits = e.residence.waits[:0]
	for _, r := range s.Requests {
		e.residence.waits = append(e.residence.waits, r.Subject)
	}
	e.residence.overcommit(s)
	e.forgetResidents(s.Workloads)
	orders := residency.Decide(s)
	// Before memory comes back, the books must keep it: no allocation may take it.
	for _, o := range orders {
		if !o.Suspend {
			e.residence.returning[o.Subject] = true
		}
	}
	if len(e.residence.returning) > 0 {
		e.measureCapacity(b)
		e.broker.Refresh()
	}
	for _, o := range orders {
		switch {
		case o.Suspend:
			e.giveWay(now, all[o.Subject], o.Why)
		case e.suspender.Waits(o.Subject):
			e.suspender.Retry(now, o.Subject)
		default:
			_ = e.suspender.Resume(now, o.Subject, o.Why) // its record is there
		}
	}
	clear(e.residence.returning)
	// On a GPU that is not overcommitted no workload gives way: it waits for room, and is shown to wait.
	for _, w := range s.Workloads {
		if w.Phase == residency.Suspended && w.Wants && !e.shared(w.Bytes) && !e.suspender.Waits(w.Subject) {
			_ = e.suspender.Resume(now, w.Subject, "it uses the GPU again") // its record is there
		}
	}
	for _, r := range e.suspender.Records() {
		e.joinSuspended(now, r, all[r.Subject()].joining(r))
	}
	e.remember()
}

// joinSuspended begins to suspend processes that started in a suspended workload. Where no
// GPU is overcommitted and the workload gave way, their memory is not needed, and they go on.
func (e *Enforcer) joinSuspended(now time.Time, r suspend.Record, c *candidate) {
	needed := !r.Yields || e.shared(suspend.Record{Processes: c.processes}.Bytes())
	failed, is := e.residence.failed[r.Subject()]
	if r.Phase != suspend.Suspended || len(c.processes) == 0 || !needed || is && now.Sub(failed) < e.Tick.Of(restAfter) {
		return
	}
	err := e.suspendable(c)
	if err == nil {
		err = e.suspender.Join(now, r.Subject(), c.processes)
	}
	if err != nil {
		e.residence.failed[r.Subject()] = now
		e.log.Warn("new processes of a suspended workload cannot be suspended, and go on; this is tried again in 10 minutes",
			"tenant", r.Tenant, "workload", r.Workload, "reason", suspend.ReasonOf(err), "err", err)
	}
}

// shared reports whether one of the GPUs, by UUID, is overcommitted.
func (e *Enforcer) shared(gpus map[string]uint64) bool {
	for uuid := range gpus {
		if _, is := e.terms.Load().Overcommitted(uuid); is {
			return true
		}
	}
	return false
}

// giveWay begins to suspend a workload that comes back when it uses the GPU.
func (e *Enforcer) giveWay(now time.Time, c *candidate, why string) {
	log := e.log.With("tenant", c.Tenant, "workload", c.Workload, "why", why)
	for _, p := range c.processes { // from now on, a call of the driver may wait
		if u := e.residence.use[p.Target]; u != nil {
			u.first, _ = waits(e.identities.procfs, p.PID) // none is known: each that waits later may do so for the driver
		}
	}
	if err := e.suspender.GiveWay(now, c.Subject, c.processes, why); err != nil {
		e.residence.failed[c.Subject] = now
		log.Warn("a workload cannot give way; this is tried again in 10 minutes", "reason", suspend.ReasonOf(err), "err", err)
		return
	}
	log.Info("a workload gives way: its GPU memory moves to the host until it uses the GPU again")
}

// waitingFor returns the allocations that wait, by workload. Nobody gives way for a process
// that is on no GPU.
func (e *Enforcer) waitingFor(now time.Time) (requests []residency.Request) {
	listed := map[waiter]bool{}
	for _, h := range e.seen.DeviceProcesses {
		listed[waiter{h.Process.PID, h.UUID}] = true
	}
	for _, w := range e.residence.queue.requests(now) {
		of := audit.Subject{Tenant: w.Tenant, Workload: fmt.Sprint("pid:", w.PID)}
		p, err := e.Host.Process(w.PID)
		if err != nil {
			continue // it has ended
		}
		if p.Workload != nil {
			of.Workload = p.Workload.Key
		}
		if r, away := e.suspender.Record(of); away && r.Yields {
			e.residence.want(of, w.since)
			continue // first it comes back
		}
		if !listed[waiter{w.PID, w.GPU}] {
			continue
		}
		requests = append(requests, residency.Request{Subject: of, GPU: w.GPU, Bytes: w.Bytes, Since: w.since,
			Priority: e.terms.Load().Priority(w.Tenant)})
	}
	return requests
}

func (r *residence) want(of audit.Subject, since time.Time) {
	if r.wanted[of].IsZero() {
		r.wanted[of] = since
	}
}

// resident returns a workload on its GPUs.
func (e *Enforcer) resident(now time.Time, c *candidate, requests []residency.Request) residency.Workload {
	r, t := &e.residence, e.terms.Load()
	bytes := suspend.Record{Processes: c.processes}.Bytes()
	if s, known := r.stays[c.Subject]; !known || float64(sum(bytes)) > growth*float64(s.bytes) {
		r.stays[c.Subject] = stay{now, sum(bytes)}
	}
	failed, is := r.failed[c.Subject]
	w := residency.Workload{Subject: c.Subject, Since: r.stays[c.Subject].since, Priority: t.Priority(c.Tenant),
		Bytes: bytes, Reclaim: t.Reclaim(c.Tenant),
		Fixed: c.mps || e.stopped(c.Subject) || is && now.Sub(failed) < e.Tick.Of(restAfter), Says: e.says(c),
		Guaranteed: map[string]uint64{}}
	w.Idle, w.Known = e.idle(now, c)
	if slices.ContainsFunc(requests, func(r residency.Request) bool { return r.Subject == c.Subject }) {
		w.Idle, w.Known = 0, true // it waits for memory
	}
	for uuid := range w.Bytes {
		w.Guaranteed[uuid] = t.Quota(c.Tenant, uuid).Reserved
	}
	return w
}

// says returns what the processes of a workload say that stands against its suspension.
func (e *Enforcer) says(c *candidate) residency.Word {
	var kinds wire.Shared
	for _, p := range c.processes {
		kinds |= e.jobs.Shared(p.PID)
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
func (e *Enforcer) absent(now time.Time, s suspend.Record, fresh *candidate) residency.Workload {
	r := &e.residence
	w := residency.Workload{Subject: s.Subject(), Phase: residency.Moving, Since: s.Since, Bytes: s.Bytes(),
		Priority: e.terms.Load().Priority(s.Tenant)}
	switch {
	case s.Phase == suspend.Suspended:
		w.Phase = residency.Suspended
		if s.Yields && (len(fresh.processes) > 0 || e.woke(now, s)) {
			r.want(s.Subject(), now)
		}
		w.Since = r.wanted[s.Subject()]
		w.Wants = s.Yields && !w.Since.IsZero() // it may have been ordered to stay away since it wanted
	case e.suspender.Waits(s.Subject()): // for room
		w.Phase, w.Wants = residency.Suspended, s.Phase == suspend.Resuming
	}
	return w
}

// woke reports whether a suspended workload tried to use a GPU.
func (e *Enforcer) woke(now time.Time, s suspend.Record) bool {
	for _, p := range s.Processes {
		if idle, known := e.jobs.Idle(p.PID); known && now.Add(-idle).After(s.Began) {
			return true
		}
		if u := e.residence.use[p.Target]; u != nil && u.stuck {
			return true
		}
	}
	return false
}

// overcommitted returns a GPU for a decision.
func (e *Enforcer) overcommitted(uuid string, b audit.Books) (g residency.GPU) {
	g.Turn, g.Overcommit = e.terms.Load().Overcommitted(uuid)
	g.Free, _ = e.free(uuid)
	if size, known := e.size(uuid); known {
		g.Size = size
	}
	for _, t := range b.Tenants {
		if t.GPU == uuid {
			// allocations that are about to be made
			g.Free -= min(t.MemoryReserved-min(t.MemoryUnlisted, t.MemoryReserved), g.Free)
		}
	}
	if m := e.residence.moves[uuid]; m != nil {
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

// forgetResidents forgets workloads that are no longer there.
func (e *Enforcer) forgetResidents(all []residency.Workload) {
	there := map[audit.Subject]bool{}
	for _, w := range all {
		there[w.Subject] = true
	}
	maps.DeleteFunc(e.residence.stays, func(s audit.Subject, _ stay) bool { return !there[s] })
	for _, m := range []map[audit.Subject]time.Time{e.residence.wanted, e.residence.failed} {
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

// explain tells a resumed program why it stood still.
func (e *Enforcer) explain(end suspend.End) {
	if !end.Yields || end.Done != suspend.Resuming || end.Err != nil {
		return
	}
	var pids []int
	for _, p := range end.Processes {
		pids = append(pids, p.PID)
	}
	e.broker.Notice(fmt.Sprintf("the GPU memory of this program, %s, was on the host because others needed the GPU or this "+
		"program did not use it; to bring it back took %.1f s", quota.Size(sum(end.Bytes())), end.Took.Seconds()), pids...)
}

// absentBytes returns the memory of each overcommitted GPU that belongs to
// suspended workloads: others may have it.
func (e *Enforcer) absentBytes() map[string]uint64 {
	away, t := map[string]uint64{}, e.terms.Load()
	for _, r := range e.suspender.Records() {
		if r.Phase != suspend.Suspended && !e.suspender.Waits(r.Subject()) || e.residence.returning[r.Subject()] {
			continue
		}
		for uuid, n := range r.Bytes() {
			if _, is := t.Overcommitted(uuid); is {
				away[uuid] += n
			}
		}
	}
	return away
}
