package sim

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// processOverhead is the memory, in bytes, that a process takes beyond what
// NVML says of it.
const processOverhead = 9240576

// process is a process on a GPU.
type process struct {
	pid    int
	name   string
	mode   nvml.ProcessMode
	memory uint64  // bytes
	share  float64 // weight of its part of the work
	gi, ci uint32
}

// slot is a place for short processes.
type slot struct {
	until int64 // step at which the process or the pause ends
	alive bool
	count int
}

// churnSlots is how many short processes there can be at once.
const churnSlots = 5

// settle makes the processes that stay.
func (g *gpu) settle() {
	g.procs = nil
	pid := 3000 + 700*g.index + int(hash(g.seed, 90)%97)
	for _, p := range g.spec.Processes {
		mode := map[string]nvml.ProcessMode{"graphics": nvml.PROCESS_MODE_GRAPHICS, "mps": nvml.PROCESS_MODE_MPS}[p.Type]
		share := p.Share
		if share == 0 {
			share = 1
		}
		g.procs = append(g.procs, process{p.PID, p.Name, mode, p.Memory << 20, share, noInstance, noInstance})
	}
	switch {
	case len(g.procs) > 0, len(g.spec.VGPUs) > 0:
	case len(g.spec.MIG) > 0:
		g.settleMIG(pid)
	case g.spec.Load == "churn":
		g.slots = make([]slot, churnSlots)
	default:
		for i, r := range g.load.procs {
			g.procs = append(g.procs, process{
				pid: pid + 3*i, name: r.name, memory: mebibytes(r.part * float64(g.model.Memory)),
				share: r.share, gi: noInstance, ci: noInstance,
			})
		}
	}
}

// mebibytes rounds bytes to whole MiB.
func mebibytes(bytes float64) uint64 { return uint64(bytes/(1<<20)+0.5) << 20 }

// populate ends and begins the short processes of a step.
func (g *gpu) populate() {
	for i := range g.slots {
		s := &g.slots[i]
		if g.n < s.until {
			continue
		}
		pid := 20000 + 2000*i + 11*g.index + s.count*13%1800
		h := hash(g.seed+uint64(i), uint64(s.count)+9000)
		if s.alive {
			g.procs = slices.DeleteFunc(g.procs, func(p process) bool { return p.pid == pid })
			s.count++
			s.until = g.n + 10 + int64(h%250)
		} else {
			g.procs = append(g.procs, process{
				pid: pid, name: "python3", memory: mebibytes(float64(g.model.Memory) * (0.01 + 0.12*ratio(h))),
				share: 0.05 + 0.3*ratio(hash(h, 1)), gi: noInstance, ci: noInstance,
			})
			s.until = g.n + 15 + int64(h%180)
		}
		s.alive = !s.alive
	}
}

// used returns the memory in use, in bytes.
func (g *gpu) used() uint64 {
	sum := uint64(0)
	for i := range g.procs {
		sum += g.procs[i].memory + processOverhead
	}
	for i := range g.spec.VGPUs {
		sum += g.spec.VGPUs[i].Memory << 20
	}
	return sum
}

// processName returns the name of a process of the GPU.
func (g *gpu) processName(pid int, now time.Duration) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.advance(now)
	for i := range g.procs {
		if g.procs[i].pid == pid {
			return g.procs[i].name, true
		}
	}
	return "", false
}

// running lists the processes of a mode, those of one GPU instance only if
// gi is one.
func (g *gpu) running(mode nvml.ProcessMode, gi uint32) []nvml.ProcessInfo {
	all := []nvml.ProcessInfo{}
	for _, p := range g.procs {
		if p.mode == mode && (gi == noInstance || p.gi == gi) {
			all = append(all, nvml.ProcessInfo{
				Pid: uint32(p.pid), UsedGpuMemory: p.memory, GpuInstanceId: p.gi, ComputeInstanceId: p.ci,
			})
		}
	}
	return all
}

// GetComputeRunningProcesses lists processes with a compute context.
func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("nvmlDeviceGetComputeRunningProcesses", nvml.PROCESS_MODE_COMPUTE)
}

// GetGraphicsRunningProcesses lists processes with a graphics context.
func (d *device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("nvmlDeviceGetGraphicsRunningProcesses", nvml.PROCESS_MODE_GRAPHICS)
}

// GetMPSComputeRunningProcesses lists the clients of MPS.
func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("nvmlDeviceGetMPSComputeRunningProcesses", nvml.PROCESS_MODE_MPS)
}

func (d *device) running(call string, mode nvml.ProcessMode) ([]nvml.ProcessInfo, nvml.Return) {
	return read(d, call, func(g *gpu) ([]nvml.ProcessInfo, nvml.Return) {
		return g.running(mode, noInstance), nvml.SUCCESS
	})
}

// GetRunningProcessDetailList lists compute processes with their instances.
func (d *device) GetRunningProcessDetailList() (nvml.ProcessDetailList, nvml.Return) {
	return read(d, "nvmlDeviceGetRunningProcessDetailList", func(g *gpu) (nvml.ProcessDetailList, nvml.Return) {
		return details(g.running(nvml.PROCESS_MODE_COMPUTE, noInstance)), nvml.SUCCESS
	})
}

func details(all []nvml.ProcessInfo) nvml.ProcessDetailList {
	list := nvml.ProcessDetailList{Mode: uint32(nvml.PROCESS_MODE_COMPUTE), NumProcArrayEntries: uint32(len(all))}
	list.Version = nvml.STRUCT_VERSION(list, 1)
	array := make([]nvml.ProcessDetail_v1, len(all))
	for i, p := range all {
		array[i] = nvml.ProcessDetail_v1{
			Pid: p.Pid, UsedGpuMemory: p.UsedGpuMemory, GpuInstanceId: p.GpuInstanceId, ComputeInstanceId: p.ComputeInstanceId,
		}
	}
	if len(array) > 0 {
		list.ProcArray = &array[0]
	}
	return list
}
