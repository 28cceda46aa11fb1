package device

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// BAR1 is the window through which the CPU and other devices access GPU memory.
var (
	BAR1Bytes = collectors.Gauge("nvgpu_bar1_memory_bytes", "Bytes of BAR1 address space, by state.", "state")
	BAR1Total = collectors.Gauge("nvgpu_bar1_memory_total_bytes", "Bytes of BAR1 address space.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "bar1",
	Doc:     "BAR1 address space.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{BAR1Bytes, BAR1Total},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		m, ret := g.GetBAR1MemoryInfo()
		out.Put(BAR1Bytes, float64(m.Bar1Used), ret, "used")
		out.Put(BAR1Bytes, float64(m.Bar1Free), ret, "free")
		out.Put(BAR1Total, float64(m.Bar1Total), ret)
	},
})
