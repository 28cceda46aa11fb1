package collectors

import "gpusteward/collectors/gpu"

// ClockMax is the maximum frequency of each clock domain.
var ClockMax = Gauge("nvgpu_clock_max_hertz", "Maximum frequency of a clock domain.", "clock")

var _ = Register(Collector{
	Name:    "clocks_max",
	Doc:     "Maximum clock frequencies.",
	Tier:    Slow,
	Metrics: []*Metric{ClockMax},
	Read: func(g *gpu.Device, out *Readings) {
		for _, c := range clockDomains {
			mhz, ret := g.GetMaxClockInfo(c.id)
			out.Put(ClockMax, float64(mhz)*1e6, ret, c.name)
		}
	},
})
