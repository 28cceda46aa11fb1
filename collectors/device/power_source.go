package device

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// PowerSource distinguishes mains, battery and an undersized supply.
var PowerSource = collectors.Gauge("nvgpu_power_source",
	"Power source: 1 for the current one, 0 for the others.", "source")

var _ = collectors.Register(collectors.Collector{
	Name:    "power_source",
	Doc:     "Power source of the board.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{PowerSource},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		s, ret := g.GetPowerSource()
		out.States(PowerSource, int(s), ret, "ac", "battery", "undersized")
	},
})
