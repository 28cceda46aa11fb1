package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Requested clocks.
var (
	ClockApp = collectors.Gauge("nvgpu_clock_app_hertz",
		"Requested frequency of the application clock.", "clock")
	ClockCustomerBoostMax = collectors.Gauge("nvgpu_clock_customer_boost_max_hertz",
		"Maximum boost frequency that can be requested.", "clock")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "clocks_app",
	Doc:     "Application clocks and the maximum customer boost clocks.",
	Tier:    collectors.Slow,
	OptIn:   true,
	Metrics: []*collectors.Metric{ClockApp, ClockCustomerBoostMax},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		for _, c := range clockDomains {
			mhz, ret := g.GetClock(c.id, nvml.CLOCK_ID_APP_CLOCK_TARGET)
			out.Put(ClockApp, float64(mhz)*1e6, gpu.Absent(ret), c.name)
			mhz, ret = g.GetMaxCustomerBoostClock(c.id)
			out.Put(ClockCustomerBoostMax, float64(mhz)*1e6, gpu.Absent(ret), c.name)
		}
	},
})
