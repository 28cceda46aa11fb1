package sim

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/broker"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// trouble is the effect of lasting faults on a GPU's work, memory and settings.
// The zero value has no effect.
type trouble struct {
	clock   float64 // MHz at which the SM clock is held
	watts   float64 // additional draw
	hung    bool    // a kernel spins
	stalled bool    // the processes do nothing
	leak    uint64  // bytes a minute that the first process leaks
	leaked  uint64  // bytes leaked so far
	orphan  uint64  // bytes in use without a process
	unkept  bool    // persistence mode is off
	fabric  func(*nvml.GpuFabricInfo_v3)
}

func (g *gpu) clockHeld(f *scenarios.Fault)  { g.trouble.clock = f.Megahertz }
func (g *gpu) clockFree(*scenarios.Fault)    { g.trouble.clock = 0 }
func (g *gpu) powerMore(f *scenarios.Fault)  { g.trouble.watts = f.Watts }
func (g *gpu) powerUsual(*scenarios.Fault)   { g.trouble.watts = 0 }
func (g *gpu) hangBegin(*scenarios.Fault)    { g.trouble.hung = true }
func (g *gpu) hangEnd(*scenarios.Fault)      { g.trouble.hung = false }
func (g *gpu) stallBegin(*scenarios.Fault)   { g.trouble.stalled = true }
func (g *gpu) stallEnd(*scenarios.Fault)     { g.trouble.stalled = false }
func (g *gpu) leakBegin(f *scenarios.Fault)  { g.trouble.leak = f.Count << 20 }
func (g *gpu) orphanEnd(*scenarios.Fault)    { g.trouble.orphan = 0 }
func (g *gpu) fabricWell(*scenarios.Fault)   { g.trouble.fabric = nil }
func (g *gpu) fabricIll(f *scenarios.Fault)  { g.trouble.fabric = fabricFaults[f.Value] }
func (g *gpu) modeBack(f *scenarios.Fault)   { g.switchMode(f, false) }
func (g *gpu) modeDrift(f *scenarios.Fault)  { g.switchMode(f, true) }
func (g *gpu) spareRows(f *scenarios.Fault)  { g.rows.spare(f.Value, uint32(f.Count)) }
func (g *gpu) spareBack(f *scenarios.Fault)  { g.rows.spare(f.Value, 0) }
func (g *gpu) orphanLeft(f *scenarios.Fault) { g.trouble.orphan = min(f.Count<<20, g.free()) }

// ghostPID is the PID of a process that has ended but is still listed, on the
// first GPU.
const ghostPID = 400_000

func (g *gpu) ghostLeft(f *scenarios.Fault) {
	memory := min(f.Count<<20, g.free())
	g.add(process{
		Process: broker.Process{PID: ghostPID + g.index, Memory: memory},
		ghost:   true, gi: noInstance, ci: noInstance,
	})
}

func (g *gpu) ghostEnd(*scenarios.Fault) {
	g.procs = slices.DeleteFunc(g.procs, func(p process) bool { return p.ghost })
}

// leakEnd ends the process that leaked, and restarts it.
func (g *gpu) leakEnd(*scenarios.Fault) {
	g.procs[0].Memory -= g.trouble.leaked
	g.trouble.leak, g.trouble.leaked = 0, 0
}

// take lets the first process allocate one second's leak, while memory is free.
func (g *gpu) take() {
	if g.trouble.leak == 0 || g.n%second != 0 {
		return
	}
	more := min(g.trouble.leak/60, g.free())
	g.procs[0].Memory += more
	g.trouble.leaked += more
}

// free returns the free memory in bytes.
func (g *gpu) free() uint64 { return g.model.Memory - g.model.Reserved - g.used() }

// does returns the GPU's activity in place of its load.
func (t *trouble) does(g *gpu) (activity, bool) {
	switch {
	case t.hung:
		return activity{busy: 1, gpm: gpm{graphics: 1, sm: 0.02, occupancy: 0.001}}, true
	case t.stalled:
		return idle(g), true
	}
	return activity{}, false
}

// spinning is the intensity of a kernel that waits for ever.
const spinning = 0.05

func (g *gpu) switchMode(f *scenarios.Fault, off bool) {
	if f.Value == "persistence" {
		g.trouble.unkept = off
		return
	}
	g.ecc.mode = flag(!off)
}

// fabricFaults are the possible faults in the fabric of GPUs behind switches.
var fabricFaults = map[string]func(*nvml.GpuFabricInfo_v3){
	"registration": func(i *nvml.GpuFabricInfo_v3) { i.Status = uint32(nvml.ERROR_UNKNOWN) },
	"in_progress":  func(i *nvml.GpuFabricInfo_v3) { i.State = nvml.GPU_FABRIC_STATE_IN_PROGRESS },
	"route_unhealthy": func(i *nvml.GpuFabricInfo_v3) {
		const shift = nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY
		i.HealthMask &^= nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY << shift
		i.HealthMask |= nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE << shift
	},
}
