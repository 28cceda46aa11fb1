package collectors

import "gpusteward/collectors/gpu"

// PowerSource distinguishes mains, battery and an undersized supply.
var PowerSource = Gauge("nvgpu_power_source", "Power source: 1 for the current one, 0 for the others.", "source")

var _ = Register(Collector{
	Name:    "power_source",
	Doc:     "Power source of the board.",
	Tier:    Slow,
	Metrics: []*Metric{PowerSource},
	Read: func(g *gpu.Device, out *Readings) {
		s, ret := g.GetPowerSource()
		out.States(PowerSource, int(s), ret, "ac", "battery", "undersized")
	},
})
