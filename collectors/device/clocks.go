package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Clock is the frequency of each clock domain. NVML gives megahertz.
var Clock = collectors.Gauge("nvgpu_clock_hertz", "Present frequency of the clock of the GPU's graphics, SMs, memory or video unit.", "clock")

var clockDomains = []struct {
	name string
	id   nvml.ClockType
}{
	{"graphics", nvml.CLOCK_GRAPHICS}, {"sm", nvml.CLOCK_SM}, {"memory", nvml.CLOCK_MEM}, {"video", nvml.CLOCK_VIDEO},
}

var _ = collectors.Register(collectors.Collector{
	Name:    "clocks",
	Doc:     "Clock frequencies.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{Clock},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		for _, c := range clockDomains {
			mhz, ret := g.GetClockInfo(c.id)
			out.Put(Clock, float64(mhz)*1e6, ret, c.name)
		}
	},
})
