package sim

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
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
	fabric  func(*nvml.GpuFabricInfo_v2)
}

func (g *gpu) clockHeld(f *Fault)  { g.trouble.clock = f.Megahertz }
func (g *gpu) clockFree(*Fault)    { g.trouble.clock = 0 }
func (g *gpu) powerMore(f *Fault)  { g.trouble.watts = f.Watts }
func (g *gpu) powerUsual(*Fault)   { g.trouble.watts = 0 }
func (g *gpu) hangBegin(*Fault)    { g.trouble.hung = true }
func (g *gpu) hangEnd(*Fault)      { g.trouble.hung = false }
func (g *gpu) stallBegin(*Fault)   { g.trouble.stalled = true }
func (g *gpu) stallEnd(*Fault)     { g.trouble.stalled = false }
func (g *gpu) leakBegin(f *Fault)  { g.trouble.leak = f.Count << 20 }
func (g *gpu) orphanEnd(*Fault)    { g.trouble.orphan = 0 }
func (g *gpu) fabricWell(*Fault)   { g.trouble.fabric = nil }
func (g *gpu) fabricIll(f *Fault)  { g.trouble.fabric = fabricFaults[f.Value] }
func (g *gpu) modeBack(f *Fault)   { g.switchMode(f, false) }
func (g *gpu) modeDrift(f *Fault)  { g.switchMode(f, true) }
func (g *gpu) spareRows(f *Fault)  { g.rows.spare(f.Value, uint32(f.Count)) }
func (g *gpu) spareBack(f *Fault)  { g.rows.spare(f.Value, 0) }
func (g *gpu) orphanLeft(f *Fault) { g.trouble.orphan = min(f.Count<<20, g.free()) }

// ghostPID is the PID of a process that has ended but is still listed, on the
// first GPU.
const ghostPID = 400_000

func (g *gpu) ghostLeft(f *Fault) {
	memory := min(f.Count<<20, g.free())
	g.procs = append(g.procs, process{
		pid: ghostPID + g.index, memory: memory, ghost: true, gi: noInstance, ci: noInstance,
	})
}

func (g *gpu) ghostEnd(*Fault) {
	g.procs = slices.DeleteFunc(g.procs, func(p process) bool { return p.ghost })
}

// leakEnd ends the process that leaked, and restarts it.
func (g *gpu) leakEnd(*Fault) {
	g.procs[0].memory -= g.trouble.leaked
	g.trouble.leak, g.trouble.leaked = 0, 0
}

// take lets the first process allocate one second's leak, while memory is free.
func (g *gpu) take() {
	if g.trouble.leak == 0 || g.n%second != 0 {
		return
	}
	more := min(g.trouble.leak/60, g.free())
	g.procs[0].memory += more
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

// modeValues are the modes that can be switched off.
var modeValues = map[string]bool{"ecc": true, "persistence": true}

func (g *gpu) switchMode(f *Fault, off bool) {
	if f.Value == "persistence" {
		g.trouble.unkept = off
		return
	}
	g.ecc.mode = flag(!off)
}

// fabricFaults are the possible faults in the fabric of GPUs behind switches.
var fabricFaults = map[string]func(*nvml.GpuFabricInfo_v2){
	"registration": func(i *nvml.GpuFabricInfo_v2) { i.Status = uint32(nvml.ERROR_UNKNOWN) },
	"in_progress":  func(i *nvml.GpuFabricInfo_v2) { i.State = nvml.GPU_FABRIC_STATE_IN_PROGRESS },
	"route_unhealthy": func(i *nvml.GpuFabricInfo_v2) {
		const shift = nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY
		i.HealthMask &^= nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY << shift
		i.HealthMask |= nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE << shift
	},
}

// checkTrouble checks the keys of the kinds in this file.
func (f *Fault) checkTrouble(g GPU, m *models.Model) error {
	switch f.Kind {
	case "clock":
		if f.Megahertz < m.Clock.IdleLow || f.Megahertz > m.Clock.Max {
			return fmt.Errorf("megahertz: %v: want %v to %v", f.Megahertz, m.Clock.IdleLow, m.Clock.Max)
		}
	case "power":
		if f.Watts <= 0 || f.Watts > m.Power.Max {
			return fmt.Errorf("watts: %v: want more than 0, and at most %v", f.Watts, m.Power.Max)
		}
	case "leak":
		if len(g.Processes) == 0 && (len(loads[g.Load].procs) == 0 || len(g.MIG)+len(g.VGPUs)+g.Crowd > 0) {
			return fmt.Errorf("kind: gpu %d has no permanent process of its own", f.GPU)
		}
	case "mode":
		if !modeValues[f.Value] {
			return fmt.Errorf("value: %q: want one of %s", f.Value, names(modeValues))
		}
	case "spare_rows":
		if f.Value != "low" && f.Value != "none" {
			return fmt.Errorf("value: %q: want low or none", f.Value)
		}
		if f.Count > uint64(m.RowBanks) {
			return fmt.Errorf("count: %d: model %s has %d banks", f.Count, g.Model, m.RowBanks)
		}
	case "fabric":
		if fabricFaults[f.Value] == nil || !m.Has("nvswitch") {
			return fmt.Errorf("value: %q: want one of %s, on a model behind switches", f.Value, names(fabricFaults))
		}
	}
	return nil
}
