package device

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// ClockMax is the maximum frequency of each clock domain.
var ClockMax = collectors.Gauge("nvgpu_clock_max_hertz", "Maximum frequency of a clock domain.", "clock")

var _ = collectors.Register(collectors.Collector{
	Name:    "clocks_max",
	Doc:     "Maximum clock frequencies.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{ClockMax},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		for _, c := range clockDomains {
			mhz, ret := g.GetMaxClockInfo(c.id)
			out.Put(ClockMax, float64(mhz)*1e6, ret, c.name)
		}
	},
})
