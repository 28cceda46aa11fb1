package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// usedBy returns the bytes of memory in use by processes of a GPU instance.
func (g *gpu) usedBy(gi uint32) uint64 {
	sum := uint64(0)
	for i := range g.procs {
		if g.procs[i].gi == gi {
			sum += g.procs[i].Memory + scenarios.ProcessOverhead
		}
	}
	return sum
}

// reserve is the instance's part of the GPU's reserved memory.
func (d *migDevice) reserve(g *gpu) uint64 {
	return g.model.Reserved * uint64(d.profile.MemorySlices) / 8
}

// GetMemoryInfo_v2 returns bytes of the GPU instance.
func (d *migDevice) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return read(d.parent, "nvmlDeviceGetMemoryInfo_v2", func(g *gpu) (nvml.Memory_v2, nvml.Return) {
		m := nvml.Memory_v2{Total: d.profile.MemoryMiB << 20, Reserved: d.reserve(g), Used: g.usedBy(d.id)}
		m.Version = nvml.STRUCT_VERSION(m, 2)
		m.Free = m.Total - m.Reserved - m.Used
		return m, nvml.SUCCESS
	})
}

// GetMemoryInfo returns bytes of the GPU instance; reserved memory counts as
// used.
func (d *migDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return read(d.parent, "nvmlDeviceGetMemoryInfo", func(g *gpu) (nvml.Memory, nvml.Return) {
		total, used := d.profile.MemoryMiB<<20, d.reserve(g)+g.usedBy(d.id)
		return nvml.Memory{Total: total, Used: used, Free: total - used}, nvml.SUCCESS
	})
}

// GetBAR1MemoryInfo returns bytes of the GPU instance.
func (d *migDevice) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return read(d.parent, "nvmlDeviceGetBAR1MemoryInfo", func(g *gpu) (nvml.BAR1Memory, nvml.Return) {
		total := g.model.BAR1 / 8 * uint64(d.profile.MemorySlices)
		used := min(bar1Base+g.usedBy(d.id), total)
		return nvml.BAR1Memory{Bar1Total: total, Bar1Used: used, Bar1Free: total - used}, nvml.SUCCESS
	})
}

// GetEccMode returns on.
func (d *migDevice) GetEccMode() (current, pending nvml.EnableState, ret nvml.Return) {
	return d.parent.GetEccMode()
}

// GetTotalEccErrors returns errors of the instance: the GPU's errors go to its
// first one.
func (d *migDevice) GetTotalEccErrors(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
	n, ret := d.parent.GetTotalEccErrors(kind, counter)
	if d.index > 0 {
		n = 0
	}
	return n, ret
}

// GetMemoryErrorCounter returns errors of the instance by location.
func (d *migDevice) GetMemoryErrorCounter(kind nvml.MemoryErrorType, counter nvml.EccCounterType,
	location nvml.MemoryLocation) (uint64, nvml.Return) {
	n, ret := d.parent.GetMemoryErrorCounter(kind, counter, location)
	if d.index > 0 {
		n = 0
	}
	return n, ret
}

// GetComputeRunningProcesses lists the processes of the instance.
func (d *migDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return read(d.parent, "nvmlDeviceGetComputeRunningProcesses", func(g *gpu) ([]nvml.ProcessInfo, nvml.Return) {
		return g.running(nvml.PROCESS_MODE_COMPUTE, d.id), nvml.SUCCESS
	})
}

// GetGraphicsRunningProcesses lists none: MIG has no graphics.
func (d *migDevice) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fixed(d.parent, "nvmlDeviceGetGraphicsRunningProcesses",
		func(*models.Model) []nvml.ProcessInfo { return []nvml.ProcessInfo{} })
}

// GetMPSComputeRunningProcesses lists none.
func (d *migDevice) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return fixed(d.parent, "nvmlDeviceGetMPSComputeRunningProcesses",
		func(*models.Model) []nvml.ProcessInfo { return []nvml.ProcessInfo{} })
}
