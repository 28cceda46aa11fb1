package broker

import (
	"slices"
	"sync/atomic"
	"time"

	"gpusteward/enforcer/schedule"
	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// A party is a tenant on a GPU: its sessions run and wait together.
type party struct {
	name      string
	quota     Quota
	seats     []*seat
	state     schedule.State // as the pages say it
	wants     bool           // as the schedule knows it
	drains    bool           // is paused, and the schedule does not know yet that it has drained
	dirty     bool           // pages must be written even if the state did not change
	overhead  time.Duration
	launches  uint64
	copied    uint64 // bytes
	passed    uint64 // see wire.Usage
	errors    uint64
	uncounted uint64
	refused   uint64 // time slices, by the driver
	longest   longest
	books     schedule.Stats // of times before the schedule forgot the tenant
	seen      schedule.Stats // as the schedule said last
	turn      *span.Span     // of the present turn; nil: it is not recorded
	late      bool           // that took too long to drain
}

// A seat is a session's place on a GPU. The process takes it when it makes a
// context there: a process that only queries a GPU does not count.
type seat struct {
	s     *session
	index int
	gpu   *gpu
	party *party // nil until the process has a context, and once the session left
	left  bool
	wants bool // reported work, and not its end
	quiet bool // is stale or suspended, or was stopped while others waited for it: it gets nothing
	owes  bool // was paused, and did not drain yet
	shown wire.Turn
	rates [2]uint64     // that the page says: over the link, within the GPU
	ranks []uint64      // communicators that the process is a rank of with this GPU
	mute  atomic.Bool   // the schedule wants to know when the process says something
	asked atomic.Bool   // wants is or will be true: another request adds nothing
	said  [4]uint64     // passed, errors, uncounted and refused, as the process said them last
	slice time.Duration // of its contexts, as the process said it last; 0: the driver's default, as far as is known
	own   atomic.Uint32 // time slice that the process gave itself, us, as its hook said it last; 0: none

	needs needs // guarded by the roll's mutex
}

// slice returns the time slice that is set in all of the tenant's processes; 0:
// they have none, or different ones.
func (p *party) slice() time.Duration {
	if len(p.seats) == 0 || slices.ContainsFunc(p.seats, func(t *seat) bool { return t.slice != p.seats[0].slice }) {
		return 0
	}
	return p.seats[0].slice
}

// A longest is the longest launch of the last minute or two.
type longest struct {
	now, before time.Duration
	since       time.Duration
}

func (l *longest) note(d, now time.Duration) {
	if now-l.since > time.Minute {
		l.now, l.before, l.since = 0, l.now, now
	}
	l.now = max(l.now, d)
}

func (l *longest) most() time.Duration { return max(l.now, l.before) }

// mostPast bounds the tenants without a session whose counters are kept.
const mostPast = 256

// note adds a report of a session's hook to the books, and returns the part
// that concerns the schedule.
func (t *seat) note(u *wire.Usage) schedule.Usage {
	p := t.party
	p.launches += u.Launched
	p.copied += min(u.Copied, mostBytes)
	p.overhead += hint(u.Overhead)
	p.longest.note(min(hint(u.Longest), time.Minute), t.gpu.now())
	t.slice = time.Duration(u.Slice) * time.Microsecond
	for i, n := range [4]uint64{u.Passed, u.Errors, u.Uncounted, uint64(u.Refused)} {
		if more := n - t.said[i]; n > t.said[i] {
			*[4]*uint64{&p.passed, &p.errors, &p.uncounted, &p.refused}[i] += more
			t.said[i] = n
		}
	}
	return schedule.Usage{Launched: u.Launched, Solo: u.Solo, SoloTime: hint(u.SoloTime), Busy: hint(u.Busy),
		Longest: hint(u.Longest)}
}

// join takes the seat for a tenant's session.
func (g *gpu) join(t *seat, tenant string, q Quota) {
	named := func(p *party) bool { return p.name == tenant }
	i := slices.IndexFunc(g.parties, named)
	if i < 0 {
		p := &party{name: tenant}
		if j := slices.IndexFunc(g.past, named); j >= 0 {
			p = g.past[j]
			g.past = slices.Delete(g.past, j, j+1)
		}
		p.state, p.wants, p.drains = schedule.State{Mode: schedule.Pause}, false, false
		i = len(g.parties)
		g.parties = append(g.parties, p)
	}
	p := g.parties[i]
	t.party, t.owes = p, false
	p.seats = append(p.seats, t)
	g.schedule.Join(g.now(), p.name, q.share())
	g.sum(p) // before its first turn, in case the schedule forgot it
	g.change(p, q)
	if t.wants {
		g.acquire(t)
	}
	g.quiet(t, t.quiet)
}

// leave gives up the seat and its part of the turn.
func (g *gpu) leave(t *seat) {
	p := t.party
	if p == nil {
		return
	}
	t.party = nil
	p.seats = slices.DeleteFunc(p.seats, func(o *seat) bool { return o == t })
	if !g.rests(p, schedule.Usage{}) {
		g.drained(p, schedule.Usage{})
	}
	g.sum(p)
	g.schedule.Leave(g.now(), p.name)
	p.pace()
	if len(p.seats) == 0 {
		was := p.state
		p.state, p.drains = schedule.State{Mode: schedule.Pause}, false
		g.spans(p, was)
		g.parties = slices.DeleteFunc(g.parties, func(o *party) bool { return o == p })
		if g.past = append(g.past, p); len(g.past) > mostPast {
			g.memory.SetCap(g.past[0].name, 0) // has it forget the tenant
			g.past = slices.Delete(g.past, 0, 1)
		}
	}
	g.spoil()
}

// forget forgets tenants without a session that are no longer in the policy,
// such as those of jobs that ended.
func (g *gpu) forget(names []string) {
	g.b.times.mu.Lock()
	defer g.b.times.mu.Unlock()
	g.past = slices.DeleteFunc(g.past, func(p *party) bool {
		gone := !slices.Contains(names, p.name)
		if gone {
			g.memory.SetCap(p.name, 0) // has it forget the tenant
		}
		return gone
	})
	for name := range g.capped {
		if !slices.Contains(names, name) && !slices.ContainsFunc(g.parties,
			func(p *party) bool { return p.name == name }) {
			g.memory.SetCap(name, 0)
			delete(g.capped, name)
		}
	}
}

// cap tells the ledger a tenant's cap before any of its sessions takes a seat.
func (g *gpu) cap(tenant string, bytes uint64) {
	g.b.times.mu.Lock()
	defer g.b.times.mu.Unlock()
	g.capped[tenant] = struct{}{}
	g.memory.SetCap(tenant, bytes)
}

// change changes a party's terms.
func (g *gpu) change(p *party, q Quota) {
	p.quota = q
	g.schedule.Change(g.now(), p.name, q.share())
	g.memory.SetCap(p.name, q.Memory)
	p.pace()
	g.spoil()
}

// pace sets the copy rate of each session of a tenant: an equal part of the
// tenant's rate. The next copy reads it; no process is woken.
func (p *party) pace() {
	each := func(all uint64) uint64 {
		if all == 0 {
			return 0
		}
		return max(all/uint64(len(p.seats)), 1) // 0 would be no limit
	}
	for _, t := range p.seats {
		if rates := [2]uint64{each(p.quota.Link), each(p.quota.Copy)}; rates != t.rates {
			t.rates = rates
			t.s.page.setRates(t.index, rates[0], rates[1])
		}
	}
}

// quiet records that a session fell silent, or speaks again. A suspended process
// gets nothing even if it speaks.
func (g *gpu) quiet(t *seat, quiet bool) {
	quiet = quiet || t.s.absent.Load()
	if t.party == nil || t.quiet == quiet {
		return
	}
	t.quiet, t.party.dirty, g.dirty = quiet, true, true
	if !quiet {
		if t.wants {
			g.acquire(t)
		}
		return
	}
	t.owes = false
	if !g.rests(t.party, schedule.Usage{}) {
		g.drained(t.party, schedule.Usage{})
	}
}

// omit finds the processes of a tenant that the kernel reports as stopped. They
// get nothing until they report again, and delay neither their tenant nor its
// neighbours. If all are stopped, they still owe their drain.
func (g *gpu) omit(p *party) {
	stops := func(t *seat) bool { return t.quiet || t.s.stopped() }
	if !slices.ContainsFunc(p.seats, func(t *seat) bool { return !stops(t) }) {
		g.schedule.Silence(g.now(), p.name)
		return
	}
	for _, t := range p.seats {
		if t.wants && !t.quiet && t.s.stopped() {
			t.quiet, t.owes, p.dirty, g.dirty = true, false, true, true
		}
	}
}

// sum returns the schedule's counts of a tenant since it first came.
func (g *gpu) sum(p *party) schedule.Stats {
	now := g.schedule.Stats(p.name)
	if now.Turns < p.seen.Turns {
		add(&p.books, p.seen)
	}
	p.seen = now
	all := p.books
	add(&all, now)
	return all
}

func add(to *schedule.Stats, more schedule.Stats) {
	to.Charged += more.Charged
	to.Served += more.Served
	to.Wanted += more.Wanted
	to.Waited += more.Waited
	to.Throttled += more.Throttled
	to.Overrun += more.Overrun
	to.Convoy += more.Convoy
	to.Turns += more.Turns
	to.Overruns += more.Overruns
	to.Waits += more.Waits
	to.Late += more.Late
}

// spoil marks all pages as dirty: one change changes everybody's part.
func (g *gpu) spoil() {
	g.dirty = true
	for _, p := range g.parties {
		p.dirty = true
	}
}

// share returns p's part of the GPU among all that have work now, 1/1000; at
// least one, because 0 would not limit a process that continues without a
// broker.
func (g *gpu) share(p *party) uint32 {
	sum := 0.0
	for _, o := range g.parties {
		if o == p || o.wants || o.state.Beside {
			sum += o.quota.weight()
		}
	}
	part := p.quota.weight() / sum
	if limit := p.quota.Limit; limit > 0 {
		part = min(part, limit)
	}
	return max(uint32(1000*part), 1)
}
