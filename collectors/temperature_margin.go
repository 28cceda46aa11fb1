package collectors

import "gpusteward/collectors/gpu"

// TemperatureMargin is the margin before the GPU slows itself down.
var TemperatureMargin = Gauge("nvgpu_temperature_margin_celsius",
	"Degrees Celsius below the temperature at which the GPU slows itself down; negative above it.")

var _ = Register(Collector{
	Name:    "temperature_margin",
	Doc:     "Margin to the temperature at which the GPU slows itself down (T.Limit); a read takes 1 ms.",
	Tier:    Medium,
	Metrics: []*Metric{TemperatureMargin},
	Read: func(g *gpu.Device, out *Readings) {
		m, ret := g.GetMarginTemperature()
		out.Put(TemperatureMargin, float64(m.MarginTemperature), ret)
	},
})
