package device

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// CCMemory is the memory protected by confidential computing.
var CCMemory = collectors.Gauge("nvgpu_cc_protected_memory_bytes",
	"Bytes of memory protected by confidential computing, by state.", "state")

var _ = collectors.Register(collectors.Collector{
	Name:    "cc_memory",
	Doc:     "Memory protected by confidential computing.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{CCMemory},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		m, ret := g.GetConfComputeProtectedMemoryUsage()
		out.Put(CCMemory, float64(m.Used), ret, "used")
		out.Put(CCMemory, float64(m.Free), ret, "free")
	},
})
