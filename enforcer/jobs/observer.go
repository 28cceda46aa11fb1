package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/ras"
	"gpusteward/enforcer/steps"
	"gpusteward/internal/wire"
)

// An Observer watches the processes that write a trace. Its methods are safe
// for concurrent use.
type Observer struct {
	Procfs   string                              // mount point of procfs; empty is /proc
	Evidence func(uuid string, pid int) Evidence // for slow steps; it must not block; nil: there is none
	RAS      string                              // address at which NCCL serves; empty: NCCL is not asked
	Trusted  []string                            // versions of NCCL that may be asked whatever ras.Refuse knows of them
	Log      *slog.Logger                        // nil: no log
	Now      func() int64                        // CLOCK_MONOTONIC, ns; nil: the system's
	// Held reports whether we ourselves have a workload stand still; nil: none. It is set between calls of
	// See and Look.
	Held func(tenant, workload string) bool

	mu        sync.Mutex
	processes map[uint64]*process // by session
	shares    map[string]share    // of them, by party
	events    []wire.Event        // buffer
	kept      []steps.Step        // buffer
	host      pressure
	hangs     map[string]*hang // by group
	readings  []reading
	late      map[int]int                         // looks in a row at which the files of a process were late, by PID
	read      func(pid int, reason string) string // nil: where
	crowded   map[communicatorOf]bool             // those of parties with too many,
	left      map[communicatorOf]int              // and how often each was left out in a row
	races     map[communicatorOf]*race
	nccl      jobsOfNCCL
	ask       func(context.Context, string) (ras.Status, error) // nil: ras.Ask
	version   func(pid int) string                              // nil: that of the mapped library
	serving   serving
	sockets   func(procfs, whose string, pids []int) (sockets, error) // nil: ask
}

// A process is what is known of one session's process.
type process struct {
	pid    int
	tenant string
	owner  string
	party  string // see broker.Traced
	shared wire.Shared
	gpus   []string // UUIDs by the session's number

	reader   wire.TraceReader
	finder   steps.Finder
	known    *steps.Status // of the finder; nil: not since it was fed,
	knownAt  int64         // at this time
	taken    uint64        // steps
	stepped  int64         // end of the last of them, CLOCK_MONOTONIC, ns
	tokens   uint64        // that may be some, as long as no steps are known
	trusted  bool          // those of this pattern:
	pattern  uint8
	sums     wire.JobStats
	pace     pace
	thread   threadMeter
	launches [16]uint64    // by GPU
	clock    int64         // when the hook last wrote the trace's clock, CLOCK_MONOTONIC, ns
	last     int64         // time of its last call, or at which it was first seen, CLOCK_MONOTONIC, ns
	calls    bool          // that was a collective
	busy     int64         // time at which its GPU was last seen with work; 0: never
	looked   int64         // when its GPU was last asked about, CLOCK_MONOTONIC, ns; 0: never
	slowed   int64         // when something was last known to slow its GPU down, likewise
	braked   time.Duration // how long something did so since its last call
	held     int64         // when we ourselves last had it stand still, likewise
	waiting  pauseMeter    // of pauses in which it waits for the GPU,
	standing pauseMeter    // and of others
	waiters  waiters       // by thread
	usual    time.Duration // usual longest pause of the former, in this rank or any other of its communicators

	communicators [wire.Communicators]communicator
	record        record // by the end of its last step
	watch         watch
	hangs         bool  // or it waits for one that hangs
	ended         int64 // when its session ended; 0: it has not
	flight        flight
}

// A flight is what a process has in flight on its GPU, and does not end.
type flight struct {
	wanted bool   // at the next look at its trace
	known  bool   // as far as the trace tells it
	text   string // see crash.InFlight
}

// A communicator is one of a process's, with what is unlike before.
type communicator struct {
	wire.Communicator
	there bool
	calls [128]uint32 // hashes of the last different calls
	next  int         // different calls so far, and
	known int         // others
	odd   bool        // a call was unlike all of those, and
	later uint64      // so many calls followed the last one of these
	since int64       // when the GPU was last seen to get on in it, CLOCK_MONOTONIC, ns

	paused float64 // seconds in which it waited for a rank that paused
}

// A communicatorOf names a communicator. A job has one tenant and one owner: no
// process can join that of another by naming its communicator.
type communicatorOf struct {
	tenant, owner string
	id            uint64
}

// now returns CLOCK_MONOTONIC, ns.
func (o *Observer) now() int64 {
	if o.Now != nil {
		return o.Now()
	}
	return wire.Monotonic()
}

func (o *Observer) procfs() string { return cmp.Or(o.Procfs, "/proc") }

// Observe takes what the process has noted since the last call.
func (o *Observer) Observe(t broker.Traced) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.processes[t.Session]
	if p == nil {
		if !o.room(t.Party) {
			return
		}
		p = &process{pid: t.PID, owner: t.Owner, party: t.Party, gpus: t.GPUs, last: o.now()}
		if o.processes == nil {
			o.processes, o.shares = map[uint64]*process{}, map[string]share{}
		}
		o.processes[t.Session] = p
		o.shares[t.Party] = o.shares[t.Party].plus(1, 0)
	}
	p.tenant, p.shared = t.Tenant, t.Trace.Shared()
	if c, ok := t.Trace.Clock(); ok {
		events, lost := p.reader.Read(t.Trace, c, o.now(), o.events[:0])
		p.clock = c.Written()
		p.take(events, lost)
		o.events = events[:0]
		for i := range p.communicators {
			p.communicators[i].shows(t.Trace, c, i, o.now())
		}
		o.count(p)
		p.mark()
		if p.flight.wanted {
			p.flight = flight{known: true, text: crash.InFlight(t, o.now())}
		}
	}
	if t.Ends {
		p.ended = o.now()
		o.shares[p.party] = o.shares[p.party].plus(0, 1)
	}
}

// A share is how many processes of a party are known, and how many of them have ended.
type share struct{ all, ended int }

func (s share) plus(all, ended int) share { return share{s.all + all, s.ended + ended} }

// room reports whether one more process of a party can be observed. A party has no more than are free, and
// those that have ended give way first: so nobody keeps the jobs of others from being observed.
func (o *Observer) room(party string) bool {
	s := o.shares[party]
	if s.all < maxProcesses-len(o.processes) || s.ended == 0 {
		return s.all < maxProcesses-len(o.processes)
	}
	first, found := uint64(0), (*process)(nil)
	for session, p := range o.processes {
		if p.party == party && p.ended > 0 && (found == nil || p.ended < found.ended) {
			first, found = session, p
		}
	}
	o.forget(first)
	return true
}

// forget forgets a process that has ended.
func (o *Observer) forget(session uint64) {
	party := o.processes[session].party
	delete(o.processes, session)
	if o.shares[party] = o.shares[party].plus(-1, -1); o.shares[party].all == 0 {
		delete(o.shares, party)
	}
}

// Idle returns how long ago a process last called the driver or had work on a
// GPU, as its trace tells it; false if it has none.
func (o *Observer) Idle(pid int) (time.Duration, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, known := int64(0), false
	for _, p := range o.processes {
		if p.pid == pid && p.ended == 0 {
			last, known = max(last, p.last, p.busy), true
		}
	}
	return time.Duration(max(o.now()-last, 0)), known
}

// Shared returns the kinds of memory for which the driver cannot suspend a
// process, as its trace tells them. A process that has just lost its broker still has them.
func (o *Observer) Shared(pid int) (kinds wire.Shared) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.processes {
		if p.pid == pid {
			kinds |= p.shared
		}
	}
	return kinds
}

// take takes new events.
func (p *process) take(events []wire.Event, lost uint64) {
	if lost > 0 {
		p.finder.Lost()
		p.sums.Lost += lost
		for i := range p.communicators { // what is unlike those that are known may have been among them
			c := &p.communicators[i]
			c.odd, c.known = false, 0
		}
		for i := range p.waiters { // and so may the ends of waits
			p.waiters[i].since, p.waiters[i].launch = 0, 0
		}
	}
	p.finder.Feed(events)
	p.known = nil
	s := &p.sums
	for _, e := range events {
		switch e.Kind {
		case wire.EventLaunch:
			s.Launches++
			p.launches[e.GPU%16]++
		case wire.EventGraph:
			s.Graphs++
			p.launches[e.GPU%16]++
		case wire.EventWait:
			s.Waits++
		case wire.EventCopy, wire.EventCopying:
			s.Copies++
			s.CopiedBytes += uint64(e.ID) * 64
		case wire.EventAlloc:
			s.Allocations++
		case wire.EventCollective:
			s.Collectives++
			p.communicators[e.GPU%wire.Communicators].call(e.ID)
		case wire.EventBusy:
			s.Busy += float64(e.ID) / 1e6
			p.busy = max(p.busy, e.At)
			continue
		case wire.EventCollected:
			p.collected(e)
			continue
		}
		p.waiters.note(e, p.held)
		if e.At > p.last {
			if p.last > 0 && p.recurred() {
				p.paused(e.Kind).note(time.Duration(max(0, e.At-p.since())))
			}
			p.last, p.braked, p.calls = e.At, 0, e.Kind == wire.EventCollective
		}
	}
}

// since returns when a pause of the process began: with its last call, or when we let it go on.
func (p *process) since() int64 { return max(p.last, p.held) }

// halt has the time until now count neither as a pause nor as a wait of the process.
func (p *process) halt(at int64) {
	p.held, p.braked = at, 0
	for i := range p.communicators {
		p.communicators[i].since = at
	}
}

// paused returns the meter of a pause that such an event ends.
func (p *process) paused(kind wire.EventKind) *pauseMeter {
	if kind == wire.EventWaited || kind == wire.EventCopied {
		return &p.waiting
	}
	return &p.standing
}

// shows takes what the trace tells of the communicator now.
func (c *communicator) shows(t wire.Trace, clock wire.Clock, index int, at int64) {
	was := c.Communicator
	c.Communicator, c.there = t.Communicator(clock, index)
	if c.ID != was.ID || c.Begun != was.Begun || c.Ended != was.Ended || c.Peers != was.Peers {
		c.since = at
	}
	c.odd = c.odd && c.ID == was.ID
}

// call notes a call's operation and size.
func (c *communicator) call(id uint32) {
	c.later++
	if slices.Contains(c.calls[:], id) {
		c.known++
		return
	}
	c.calls[c.next%len(c.calls)] = id
	c.next++
	if c.known > 2*c.next {
		c.odd, c.later = true, 0
	}
}

// strange returns the number of the last call unlike those of a communicator
// whose calls are mostly alike; 0: there was none, or the GPU is done with it.
func (c *communicator) strange() uint64 {
	if n := c.Entered - c.later; c.odd && n > c.Ended && n >= c.Begun {
		return n
	}
	return 0
}

// trusts reports whether the steps are to be counted.
func (p *process) trusts(all []steps.Step) bool {
	if len(all) == 0 {
		return false
	}
	pattern, n, sum := all[len(all)-1].Pattern, 0, time.Duration(0)
	for i := len(all) - 1; i >= 0 && all[i].Pattern == pattern; i-- {
		n, sum = n+1, sum+all[i].Wall()
	}
	if n >= trustedSteps || sum >= trustedTime {
		p.trusted, p.pattern = true, pattern
	}
	return p.trusted && p.pattern == pattern
}

// recurred reports whether the process has had steps, or what may be tokens: its
// pauses are those of one of them.
func (p *process) recurred() bool { return p.taken+p.tokens > 0 }

// count adds the steps that have ended.
func (o *Observer) count(p *process) {
	o.kept = p.finder.Steps(p.taken, o.kept[:0])
	if !p.trusts(o.kept) {
		if n := p.finder.Tokens(); p.taken == 0 {
			p.waiting.ended(int(n - p.tokens))
			p.standing.ended(int(n - p.tokens))
			p.tokens = n
		}
		return
	}
	p.taken, p.stepped = p.finder.Finished(), o.kept[len(o.kept)-1].End
	p.waiting.ended(len(o.kept))
	p.standing.ended(len(o.kept))
	s := &p.sums
	if s.Parts == nil {
		s.Parts, s.Slow = map[string]float64{}, map[string]uint64{}
	}
	for i := range o.kept {
		step := &o.kept[i]
		s.Steps++
		observe(&s.Seconds, step.Wall().Seconds())
		for part, d := range partsOf(step) {
			s.Parts[part] += d.Seconds()
		}
		if step.Begin < p.held {
			continue // it was longer because of us
		}
		if cause, slow := p.pace.step(step, p.measured()); slow > 0 {
			s.Slow[cause] += uint64(slow)
		}
	}
}

// measured returns how many collectives stand behind one whose time is known.
func (p *process) measured() float64 {
	entered, measured := uint64(0), uint64(0)
	for i := range p.communicators {
		if c := &p.communicators[i]; c.there {
			entered, measured = entered+c.Entered, measured+c.Measured
		}
	}
	if measured == 0 {
		return 1
	}
	return max(1, float64(entered)/float64(measured))
}

// partsOf yields the parts of a step by their names.
func partsOf(s *steps.Step) iter.Seq2[string, time.Duration] {
	return func(yield func(string, time.Duration) bool) {
		_ = yield("launching", s.Launching()) && yield("waiting", s.Waiting.Duration()) &&
			yield("copying", s.Copying.Duration()) && yield("held", s.Held.Duration()) &&
			yield("host", s.Host.Duration())
	}
}

// observe adds a value to a histogram.
func observe(h *wire.Exponential, v float64) {
	if h.Buckets == nil {
		h.Buckets = map[int]uint64{}
	}
	if v > 0 {
		h.Buckets[int(math.Ceil(8*math.Log2(v)))]++
	}
	h.Count++
	h.Sum += v
}

// gpu returns the UUID of the GPU on which the process launches most.
func (p *process) gpu() string {
	most := 0
	for i := range p.launches {
		if p.launches[i] > p.launches[most] {
			most = i
		}
	}
	if most < len(p.gpus) {
		return p.gpus[most]
	}
	return ""
}

// Look returns the statistics of all processes, and the present hangs. workload
// returns the workload of a process; empty: it is not known.
func (o *Observer) Look(workload func(pid int) string) (all []wire.JobStats, hangs []wire.HangStats) {
	at := o.now()
	f := o.reads(at)
	o.mu.Lock()
	defer o.mu.Unlock()
	for session, p := range o.processes {
		if p.ended > 0 && at-p.ended > int64(keepEnded) {
			o.forget(session)
		}
	}
	for _, p := range o.processes {
		if p.ended > 0 {
			continue
		}
		if name := workload(p.pid); name != "" {
			p.sums.Workload = name
		}
		if o.Held != nil && o.Held(p.tenant, p.sums.Workload) {
			p.halt(at)
		}
		e := o.brakes(p)
		if p.trusted || p.finder.Status(at).Stepping {
			o.sees(p, e)
		}
	}
	hangs = o.judge(at, f)
	for _, p := range o.processes {
		if p.ended == 0 {
			all = append(all, p.stats(at))
		}
	}
	slices.SortFunc(all, func(a, b wire.JobStats) int { return cmp.Compare(a.PID, b.PID) })
	return all, hangs
}

// stats returns a copy of the process's sums.
func (p *process) stats(at int64) wire.JobStats {
	s := p.sums
	s.Tenant, s.GPU, s.PID = p.tenant, p.gpu(), p.pid
	s.Parts, s.Slow, s.Seconds.Buckets = maps.Clone(s.Parts), maps.Clone(s.Slow), maps.Clone(s.Seconds.Buckets)
	status := p.finder.Status(at)
	p.sums.Outside = max(p.sums.Outside, (status.Outside + p.stands(at)).Seconds())
	s.Stepping = status.Stepping && !p.hangs && p.quiet(at) < max(standsAfter, standsSteps*status.Median)
	s.Median, s.Outside = status.Median.Seconds(), p.sums.Outside
	s.Slowdown = p.pace.slowdown(at)
	for _, c := range p.largest() {
		s.Communicators = append(s.Communicators, wire.CommunicatorStats{ID: shown(c.ID),
			Rank: int(c.Rank), Ranks: int(c.Ranks), Entered: c.Entered, Measured: c.Measured,
			Seconds: float64(c.MeasuredNS) / 1e9, Paused: c.paused})
		s.CollectiveBytes += c.Bytes
	}
	return s
}

// shown returns the name of a communicator for everybody, the same on all hosts of a job. It does not tell
// the ID, with which other processes could make themselves ranks of it.
func shown(id uint64) string {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(nil, id))
	return hex.EncodeToString(sum[:8])
}

// stands returns for how long the process has stood still. The step may end yet:
// until as much time is in no step, the sum of that time then stays as it is. The
// requests of a server may look like steps at first: nothing is outside of them.
func (p *process) stands(at int64) time.Duration {
	idle := time.Duration(at - p.stepped)
	step := p.sums.Seconds.Sum / max(1, float64(p.sums.Seconds.Count))
	if p.stepped == 0 || !p.finder.Status(at).Known || idle < standsAfter || idle.Seconds() < standsSteps*step {
		return 0
	}
	return idle
}

// largest returns the communicators with the most ranks.
func (p *process) largest() (all []*communicator) {
	for i := range p.communicators {
		if c := &p.communicators[i]; c.there {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b *communicator) int {
		return cmp.Or(cmp.Compare(b.Ranks, a.Ranks), cmp.Compare(a.ID, b.ID))
	})
	return all[:min(len(all), maxCommunicators)]
}
