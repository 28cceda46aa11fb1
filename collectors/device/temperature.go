package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Temperature is that of the GPU's core and, if it has a sensor, of its memory.
var Temperature = collectors.Gauge("nvgpu_temperature_celsius", "Present temperature of the GPU's core (sensor gpu) or of its memory, in degrees Celsius.", "sensor")

var memoryTemperature = []collectors.Field{collectors.NewField(nvml.FI_DEV_MEMORY_TEMP, 0, Temperature, 1, "memory")}

var _ = collectors.Register(collectors.Collector{
	Name:    "temperature",
	Doc:     "Temperatures.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{Temperature},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		celsius, ret := g.Temperature()
		out.Put(Temperature, celsius, ret, "gpu")
		out.Fields(g, memoryTemperature)
	},
})
