package sim

import (
	"gpusteward/collectors/gpu/sim/broker"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/wire"
)

// Tenants reports whether the scenario has tenants, and Books therefore has
// contents.
func (h *Host) Tenants() bool { return len(h.scenario.Tenants) > 0 }

// Books returns the current statistics of a broker and an enforcer about the
// tenants. It needs no session, and no GPU's fault delays it. It never fails.
func (h *Host) Books() (wire.Stats, error) {
	report, now := broker.NewReport(), h.now()
	for _, g := range h.gpus {
		g.mu.Lock()
		g.advance(now)
		report.Add(g.broker)
		g.mu.Unlock()
	}
	return report.Stats(now), nil
}

// newBroker returns the books of the GPU. One in MIG mode has no tenants.
func (g *gpu) newBroker() *broker.GPU {
	o := broker.Options{UUID: g.uuid("GPU", 0), Training: g.training(), Processes: g.clients, Noise: g.noise}
	if len(g.spec.MIG) == 0 {
		o.Tenants = g.host.scenario.Tenants
	}
	return broker.New(o)
}

// clients yields the processes as the broker sees them.
func (g *gpu) clients(yield func(*broker.Process) bool) {
	for i := range g.procs {
		if !yield(&g.procs[i].Process) {
			return
		}
	}
}

// charge books a step.
func (g *gpu) charge() {
	w := broker.Work{Busy: g.work.busy, Weight: g.weight, DRAM: g.work.gpm.dram,
		PCIe: (g.work.gpm.pcieTx + g.work.gpm.pcieRx) * (1 << 20)}
	if g.broker.Charge(w) {
		g.weigh()
	}
}

func (g *gpu) tenantFault(f *scenarios.Fault)    { g.strikeTenant(f, true) }
func (g *gpu) tenantFaultEnd(f *scenarios.Fault) { g.strikeTenant(f, false) }

func (g *gpu) strikeTenant(f *scenarios.Fault, on bool) {
	g.broker.Strike(f, on)
	g.weigh()
}

// crowded returns the work of a GPU with pressing tenants: more than it can do.
func (g *gpu) crowded(a activity) activity {
	if g.broker.Pressed() && g.weight > 0 {
		return g.compute(0.985+0.012*g.noise(1), 0.35+0.02*g.noise(2), 0.4+0.02*g.noise(3))
	}
	return a
}
