package sim

import (
	"slices"
	"time"

	"gpusteward/internal/quota"
)

// books are those of one tenant on one GPU, from the time on that the GPU has
// run. What is charged is what its processes that have a session are seen to
// use; times are in seconds.
type books struct {
	*Tenant
	workloads []*standing // that were ever there, in their order

	greedy, starved, bypass bool // faults

	members, sessions int
	used, charged     float64 // parts of the GPU's time in this step
	wanted            float64
	dram              float64 // part of the memory's bandwidth
	recent            [10 * second]share
	seconds, overrun  float64
	served, wants     float64 // seconds that it would have needed alone, and in which it wanted the GPU
	wait, throttled   float64
	turns, launches   float64
	copied            float64 // bytes
	waits, late       float64
	held, peak        uint64 // bytes
	denied            float64
	window            window // that is open
	windows, missed   [quota.Objectives]uint64
}

// share is what a tenant had of a step, and what was its.
type share struct{ target, actual float64 }

// window is what is judged at its end, every 10 s as the enforcer's.
type window struct{ used, wanted, waits, late float64 }

const (
	auditEvery = 10 * second // steps of a window
	turn       = 0.010       // seconds
	handover   = 0.0002      // seconds that each takes
	holdDown   = 6           // clean windows that bring one a level down
	ofContext  = 300 << 20   // bytes of a process that no hook sees, at most
)

// enrol finds whose each process is, and gives each its part of the work:
// faults of tenants move parts between them, and leave the sum as it is.
func (g *gpu) enrol() {
	for _, b := range g.books {
		b.members, b.sessions, b.held = 0, 0, 0
		for _, s := range b.workloads {
			s.processes, s.unhooked, s.drift = 0, 0, 0
		}
	}
	for i := range g.procs {
		if p := &g.procs[i]; p.books == nil && len(g.books) > 0 {
			p.workload = g.workload(p)
			at := slices.IndexFunc(g.books, func(b *books) bool { return b.owns(p.workload) })
			if p.books = nobody; at >= 0 {
				p.books = g.books[at]
			}
		}
	}
	for i := range g.procs {
		p := &g.procs[i]
		if p.share = p.own; p.books != nil && p.books != nobody {
			p.books.admit(p)
		}
	}
	for _, b := range g.books {
		if part := b.pressed(); part > 0 {
			g.press(b, part)
		}
	}
}

// nobody's books are those of a process that is no tenant's.
var nobody = new(books)

// admit counts a process. The books know nothing of one that goes around the
// hook.
func (b *books) admit(p *process) {
	s := b.standing(p.workload)
	s.processes++
	b.members++
	p.hooked = true
	if b.bypass && s.unhooked == 0 {
		p.hooked, s.unhooked = false, 1
		return
	}
	unseen := min(p.memory/16, ofContext)
	b.sessions++
	b.held += p.memory - unseen
	s.drift += float64(unseen)
	b.peak = max(b.peak, b.held)
}

// charge writes a step into the books.
func (g *gpu) charge() {
	if len(g.books) == 0 {
		return
	}
	for _, b := range g.books {
		b.used, b.charged = 0, 0
	}
	active := 0.0
	for i := range g.procs {
		p := &g.procs[i]
		if p.share == 0 {
			continue
		}
		part := g.work.busy * p.share / g.weight
		active += part
		if p.books == nobody {
			continue
		}
		p.books.used += part
		if p.hooked {
			p.books.charged += part
		}
	}
	for _, b := range g.books {
		if b.members > 0 {
			g.chargeTenant(b, active-b.used)
		}
		g.together += min(b.charged, max(active-b.used, 0)) / 2 * float64(step) / float64(time.Second)
		if g.n%auditEvery == 0 {
			b.audit()
		}
	}
	if g.n%auditEvery == 0 {
		g.weigh() // who is throttled now has less
	}
}

// chargeTenant writes a step in which the other processes used so much of the
// GPU. A tenant has all that it wants but where a fault keeps it from it.
func (g *gpu) chargeTenant(b *books, others float64) {
	const dt = float64(step) / float64(time.Second)
	b.wanted = b.used
	if b.starved {
		b.wanted = max(b.used, b.Guarantee)
	}
	b.dram = 0
	if g.work.busy > 0 {
		b.dram = g.work.gpm.dram * b.used / g.work.busy
	}
	b.recent[(g.n+preroll)%int64(len(b.recent))] = share{min(b.wanted, b.Limit), b.charged}
	turns := b.charged * dt / turn / 10 // nobody else wants it: it is held back seldom
	wait, gain := 0.0, 1.0
	if others > 0.02 && b.charged > 0 {
		turns = b.charged * dt / turn
		late := 0.001
		if b.starved {
			late = 0.4
		}
		if b.LaunchWait == 0 {
			late = 0
		}
		b.waits += turns
		b.late += turns * late
		b.window.waits += turns
		b.window.late += turns * late
		wait = min(b.wanted*others, 1)*0.2*dt + (b.wanted-b.used)*dt
		gain = 1 + 0.05*others // what runs at once gets on faster than by turns
		b.wait += wait
		b.throttled += 1.3 * wait
		b.overrun += turns * 0.00004
		g.handover += turns * handover
	}
	b.seconds += b.charged * dt
	b.served += b.charged * dt * gain
	b.wants += min(b.charged*dt+wait, dt)
	b.turns += turns
	b.launches += b.charged * dt * 2400
	if g.work.busy > 0 {
		b.copied += (g.work.gpm.pcieTx + g.work.gpm.pcieRx) * (1 << 20) * dt * b.charged / g.work.busy
	}
	b.window.used += b.used / float64(auditEvery)
	b.window.wanted += b.wanted / float64(auditEvery)
}
