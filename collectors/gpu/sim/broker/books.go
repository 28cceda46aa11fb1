package broker

import (
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/quota"
)

// books are the broker's books of one tenant on one GPU, since the GPU's start.
// The charge is the use of the tenant's processes with a session; times are in
// seconds.
type books struct {
	*scenarios.Tenant
	workloads []*standing // every workload so far, in order of appearance

	greedy, starved, bypass bool // faults

	members, sessions int
	used, charged     float64 // shares of GPU time in this step
	wanted            float64
	dram              float64 // share of the memory bandwidth
	recent            [10 * second]share
	seconds, overrun  float64
	served, wants     float64 // seconds that its work would have taken alone, and seconds in which it wanted the GPU
	wait, throttled   float64
	turns, launches   float64
	copied            float64 // bytes
	waits, late       float64
	held, peak        uint64 // bytes
	denied            float64
	window            window // the current one
	windows, missed   [quota.Objectives]uint64
}

// share is a tenant's share of a step, and the share due to it.
type share struct{ target, actual float64 }

// window is the audit's unit, 10 s as in the enforcer.
type window struct{ used, wanted, waits, late float64 }

const (
	auditEvery = 10 * second // steps of a window
	turn       = 0.010       // seconds
	handover   = 0.0002      // seconds per handover
	holdDown   = 6           // clean windows before the level falls
	ofContext  = 300 << 20   // maximum bytes of a process without a hook
)

// admit counts a process. The books do not see a process that bypasses the
// hook.
func (b *books) admit(p *Process) {
	s := b.standing(p.Workload)
	s.processes++
	b.members++
	p.hooked = true
	if b.bypass && s.unhooked == 0 {
		p.hooked, s.unhooked = false, 1
		return
	}
	unseen := min(p.Memory/16, ofContext)
	b.sessions++
	b.held += p.Memory - unseen
	s.drift += float64(unseen)
	b.peak = max(b.peak, b.held)
}

// chargeTenant books a step in which the other processes used that much of the
// GPU. A tenant gets everything that it wants unless a fault prevents it.
func (g *GPU) chargeTenant(b *books, others float64) {
	b.wanted = b.used
	if b.starved {
		b.wanted = max(b.used, b.Guarantee)
	}
	b.dram = 0
	if g.work.Busy > 0 {
		b.dram = g.work.DRAM * b.used / g.work.Busy
	}
	b.recent[g.steps%int64(len(b.recent))] = share{min(b.wanted, b.Limit), b.charged}
	turns := b.charged * dt / turn / 10 // without competition it is rarely held back
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
		gain = 1 + 0.05*others // concurrent work progresses faster than in turns
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
	if g.work.Busy > 0 {
		b.copied += g.work.PCIe * dt * b.charged / g.work.Busy
	}
	b.window.used += b.used / float64(auditEvery)
	b.window.wanted += b.wanted / float64(auditEvery)
}
