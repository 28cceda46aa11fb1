package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// MemoryBandwidth is what the memory can do: its highest clock, twice in each
// cycle, over all wires of its bus. 2619 MHz on 5120 wires are the 3.35 TB/s of
// an H100.
var MemoryBandwidth = Gauge("nvgpu_memory_bandwidth_max_bytes_per_second", "Highest bandwidth of the device memory, by its clock and the width of its bus.")

var _ = Register(Collector{
	Name:    "memory_bandwidth",
	Doc:     "Highest bandwidth of the device memory.",
	Tier:    Static,
	Metrics: []*Metric{MemoryBandwidth},
	Read: func(g *gpu.Device, out *Readings) {
		wires, ret := g.GetMemoryBusWidth()
		if ret != nvml.SUCCESS {
			out.Put(MemoryBandwidth, 0, ret)
			return
		}
		mhz, ret := g.GetMaxClockInfo(nvml.CLOCK_MEM)
		out.Put(MemoryBandwidth, float64(mhz)*1e6*2*float64(wires)/8, ret)
	},
})
