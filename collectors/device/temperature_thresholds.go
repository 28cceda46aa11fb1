package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Thresholds: absolute up to Hopper, relative to T.Limit from Ada on.
var (
	TemperatureThreshold = collectors.Gauge("nvgpu_temperature_threshold_celsius",
		"Temperature at which the GPU acts.", "threshold")
	TemperatureTLimit = collectors.Gauge("nvgpu_temperature_tlimit_celsius",
		"Margin at which the GPU acts; zero or negative.", "threshold")
)

var temperatureThresholds = []struct {
	name string
	id   nvml.TemperatureThresholds
}{
	{"shutdown", nvml.TEMPERATURE_THRESHOLD_SHUTDOWN},
	{"slowdown", nvml.TEMPERATURE_THRESHOLD_SLOWDOWN},
	{"memory_max", nvml.TEMPERATURE_THRESHOLD_MEM_MAX},
	{"gpu_max", nvml.TEMPERATURE_THRESHOLD_GPU_MAX},
	{"acoustic_curr", nvml.TEMPERATURE_THRESHOLD_ACOUSTIC_CURR},
}

var tlimitFields = []collectors.Field{
	collectors.NewField(nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, 0, TemperatureTLimit, 1, "shutdown"),
	collectors.NewField(nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, 0, TemperatureTLimit, 1, "slowdown"),
	collectors.NewField(nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, 0, TemperatureTLimit, 1, "memory_max"),
	collectors.NewField(nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, 0, TemperatureTLimit, 1, "gpu_max"),
}

var _ = collectors.Register(collectors.Collector{
	Name:    "temperature_thresholds",
	Doc:     "Temperatures and margins at which the GPU acts.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{TemperatureThreshold, TemperatureTLimit},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		for _, t := range temperatureThresholds {
			celsius, ret := g.GetTemperatureThreshold(t.id)
			out.Put(TemperatureThreshold, float64(celsius), gpu.Absent(ret), t.name)
		}
		out.Fields(g, tlimitFields)
	},
})
