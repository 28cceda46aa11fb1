package links

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// C2CEnabled is whether a GPU of a superchip uses its C2C links.
var C2CEnabled = collectors.Gauge("nvgpu_c2c_enabled",
	"Whether the GPU uses the C2C links to its Grace CPU, and not PCIe.")

var _ = collectors.Register(collectors.Collector{
	Name:    "c2c_mode",
	Doc:     "C2C mode of a superchip.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{C2CEnabled},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		info, ret := g.C2CMode()
		out.Put(C2CEnabled, float64(info.IsC2cEnabled), ret)
	},
})
