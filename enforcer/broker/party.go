package broker

import (
	"slices"
	"sync/atomic"
	"time"

	"gpusteward/enforcer/schedule"
	"gpusteward/enforcer/wire"
)

// A party is a tenant on a GPU: its sessions share its turns.
type party struct {
	name     string
	quota    Quota
	seats    []*seat
	state    schedule.State // as the pages say it
	wants    bool           // as the schedule knows it
	due      bool           // a turn is over, and the schedule was not told yet
	dirty    bool           // pages must be written though the state did not change
	first    uint64         // of what was done in this turn, ns
	last     uint64
	usage    schedule.Usage
	overhead time.Duration
	launches uint64
	copied   uint64         // bytes
	books    schedule.Stats // of times before the schedule forgot the tenant
	seen     schedule.Stats // as the schedule said last
}

// A seat is a session's place on a GPU.
type seat struct {
	s     *session
	index int
	gpu   *gpu
	party *party
	wants bool // asked, and did not say that it is idle
	quiet bool // is stale: it gets no turn
	owes  bool // was paused, and did not yield yet
	shown wire.Turn
	rates [2]uint64   // that the page says: over the link, within the GPU
	asked atomic.Bool // wants is true for sure, or will be: asking again says nothing
}

// mostPast is how many tenants' counters are kept without a session.
const mostPast = 256

// rest takes note that the schedule found the tenant idle.
func (p *party) rest() {
	p.wants = false
	for _, t := range p.seats {
		t.wants = false
		t.asked.Store(false)
	}
}

// note adds to what the hooks of a tenant say they did.
func (p *party) note(u *wire.Usage) {
	p.launches += u.Launched
	p.copied += min(u.Copied, mostBytes)
	p.overhead += time.Duration(min(u.Overhead, uint64(time.Hour)))
}

// join takes a seat for a tenant's session.
func (g *gpu) join(t *seat, tenant string, q Quota) {
	named := func(p *party) bool { return p.name == tenant }
	i := slices.IndexFunc(g.parties, named)
	if i < 0 {
		p := &party{name: tenant}
		if j := slices.IndexFunc(g.past, named); j >= 0 {
			p = g.past[j]
			g.past = slices.Delete(g.past, j, j+1)
		}
		p.state, p.wants, p.due = schedule.State{Mode: schedule.Pause}, false, false
		i = len(g.parties)
		g.parties = append(g.parties, p)
	}
	p := g.parties[i]
	t.party, t.shown, t.owes = p, wire.Turn{Mode: wire.ModePause}, false
	p.seats = append(p.seats, t)
	g.schedule.Join(g.now, p.name, q.share())
	g.change(p, q)
	if t.wants && !t.quiet {
		g.ask(p, 0, 0)
	}
}

// leave gives the seat up, and with it what it had of the turn.
func (g *gpu) leave(t *seat) {
	p := t.party
	if p == nil {
		return
	}
	t.party = nil
	p.seats = slices.DeleteFunc(p.seats, func(o *seat) bool { return o == t })
	g.tell(p)
	g.sum(p)
	g.schedule.Leave(g.now, p.name)
	p.pace()
	if len(p.seats) == 0 {
		g.parties = slices.DeleteFunc(g.parties, func(o *party) bool { return o == p })
		if g.past = append(g.past, p); len(g.past) > mostPast {
			g.memory.SetCap(g.past[0].name, 0) // has it forget the tenant
			g.past = slices.Delete(g.past, 0, 1)
		}
	}
	g.spoil()
}

// forget forgets the tenants without a session that are none of the policy's
// any more, such as those of jobs that ended.
func (g *gpu) forget(names []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.past = slices.DeleteFunc(g.past, func(p *party) bool {
		gone := !slices.Contains(names, p.name)
		if gone {
			g.memory.SetCap(p.name, 0) // has it forget the tenant
		}
		return gone
	})
}

// change gives a party other terms.
func (g *gpu) change(p *party, q Quota) {
	p.quota = q
	g.schedule.Change(g.now, p.name, q.share())
	g.memory.SetCap(p.name, q.Memory)
	p.pace()
	g.spoil()
}

// pace tells the sessions of a tenant how fast each may copy: an equal part of
// what all may. It is for the next copy to look at, and wakes nobody.
func (p *party) pace() {
	each := func(all uint64) uint64 {
		if all == 0 {
			return 0
		}
		return max(all/uint64(len(p.seats)), 1) // 0 would be at will
	}
	for _, t := range p.seats {
		if rates := [2]uint64{each(p.quota.Link), each(p.quota.Copy)}; rates != t.rates {
			t.rates = rates
			t.s.page.setRates(t.index, rates[0], rates[1])
		}
	}
}

// quiet says that a session fell silent, or speaks again.
func (g *gpu) quiet(t *seat, quiet bool) {
	if t.party == nil || t.quiet == quiet {
		return
	}
	t.quiet, t.party.dirty = quiet, true
	switch {
	case quiet:
		t.owes = false
	case t.wants:
		g.ask(t.party, 0, 0)
	}
}

// sum returns what the schedule counted for a tenant, from when it first came.
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
	to.Waited += more.Waited
	to.Throttled += more.Throttled
	to.Overrun += more.Overrun
	to.Turns += more.Turns
	to.Overruns += more.Overruns
	to.Waits += more.Waits
	to.Late += more.Late
}

// spoil has all pages written: everybody's part changes when one's does.
func (g *gpu) spoil() {
	for _, p := range g.parties {
		p.dirty = true
	}
}

// share returns p's part of the GPU beside all who are there, 1/1000; at least
// one, because none would be no limit to who goes on without a broker.
func (g *gpu) share(p *party) uint32 {
	sum := 0.0
	for _, o := range g.parties {
		sum += o.quota.weight()
	}
	part := p.quota.weight() / sum
	if limit := p.quota.Limit; limit > 0 {
		part = min(part, limit)
	}
	return max(uint32(1000*part), 1)
}
