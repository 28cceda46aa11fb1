package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// MemoryBandwidth is the theoretical bandwidth: the highest memory clock, two
// transfers per cycle, times the bus width. An H100 with 2619 MHz and 5120 bits
// has 3.35 TB/s.
var MemoryBandwidth = collectors.Gauge("nvgpu_memory_bandwidth_max_bytes_per_second",
	"Maximum bandwidth of the device memory, from its clock and bus width.")

var _ = collectors.Register(collectors.Collector{
	Name:    "memory_bandwidth",
	Doc:     "Maximum bandwidth of the device memory.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{MemoryBandwidth},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		wires, ret := g.GetMemoryBusWidth()
		if ret != nvml.SUCCESS {
			out.Put(MemoryBandwidth, 0, ret)
			return
		}
		mhz, ret := g.GetMaxClockInfo(nvml.CLOCK_MEM)
		out.Put(MemoryBandwidth, float64(mhz)*1e6*2*float64(wires)/8, ret)
	},
})
