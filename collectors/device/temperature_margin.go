package device

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// TemperatureMargin is the margin before the GPU slows itself down.
var TemperatureMargin = collectors.Gauge("nvgpu_temperature_margin_celsius",
	"Degrees Celsius below the temperature at which the GPU slows itself down; negative above it.")

var _ = collectors.Register(collectors.Collector{
	Name:    "temperature_margin",
	Doc:     "Margin to the temperature at which the GPU slows itself down (T.Limit); a read takes 1 ms.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{TemperatureMargin},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		m, ret := g.GetMarginTemperature()
		out.Put(TemperatureMargin, float64(m.MarginTemperature), ret)
	},
})
