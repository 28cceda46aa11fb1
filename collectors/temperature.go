package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Temperature is that of the GPU's core and, if it has a sensor, of its memory.
var Temperature = Gauge("nvgpu_temperature_celsius", "Temperature of a sensor.", "sensor")

var memoryTemperature = []Field{NewField(nvml.FI_DEV_MEMORY_TEMP, 0, Temperature, 1, "memory")}

var _ = Register(Collector{
	Name:    "temperature",
	Doc:     "Temperatures.",
	Tier:    Fast,
	Metrics: []*Metric{Temperature},
	Read: func(g *gpu.Device, out *Readings) {
		celsius, ret := g.Temperature()
		out.Put(Temperature, celsius, ret, "gpu")
		out.Fields(g, memoryTemperature)
	},
})
