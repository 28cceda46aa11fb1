package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
)

// bar1Base is the memory that the driver itself maps through BAR1, in bytes.
const bar1Base = 1703936

// GetMemoryInfo returns bytes; reserved memory counts as used.
func (d *device) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return read(d, "nvmlDeviceGetMemoryInfo", func(g *gpu) (nvml.Memory, nvml.Return) {
		used := g.model.Reserved + g.used()
		return nvml.Memory{Total: g.model.Memory, Used: used, Free: g.model.Memory - used}, nvml.SUCCESS
	})
}

// GetMemoryInfo_v2 returns bytes; total is the sum of reserved, used and free.
func (d *device) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return read(d, "nvmlDeviceGetMemoryInfo_v2", func(g *gpu) (nvml.Memory_v2, nvml.Return) {
		m := nvml.Memory_v2{Total: g.model.Memory, Reserved: g.model.Reserved, Used: g.used()}
		m.Version = nvml.STRUCT_VERSION(m, 2)
		m.Free = m.Total - m.Reserved - m.Used
		return m, nvml.SUCCESS
	})
}

// GetBAR1MemoryInfo returns bytes.
func (d *device) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return read(d, "nvmlDeviceGetBAR1MemoryInfo", func(g *gpu) (nvml.BAR1Memory, nvml.Return) {
		used := min(bar1Base+g.used(), g.model.BAR1)
		return nvml.BAR1Memory{Bar1Total: g.model.BAR1, Bar1Used: used, Bar1Free: g.model.BAR1 - used}, nvml.SUCCESS
	})
}

// GetConfComputeProtectedMemoryUsage returns zeros: nothing is protected.
func (d *device) GetConfComputeProtectedMemoryUsage() (nvml.Memory, nvml.Return) {
	return fixed(d, "nvmlDeviceGetConfComputeProtectedMemoryUsage",
		func(*models.Model) nvml.Memory { return nvml.Memory{} })
}

// GetMemoryBusWidth returns bits.
func (d *device) GetMemoryBusWidth() (uint32, nvml.Return) {
	return fixed(d, "nvmlDeviceGetMemoryBusWidth", func(m *models.Model) uint32 { return m.BusWidth })
}
