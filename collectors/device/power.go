package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Power is the power draw of the board. NVML gives milliwatts; average is over
// one second. The scopes overlap: gpu includes memory, and module includes gpu.
var Power = collectors.Gauge("nvgpu_power_watts",
	"Power draw; scope gpu includes memory, and module includes gpu.", "kind", "scope")

// Scopes of the power and energy fields (nvml.h NVML_POWER_SCOPE_*).
const (
	scopeGPU    = nvml.POWER_SCOPE_GPU
	scopeModule = nvml.POWER_SCOPE_MODULE
	scopeMemory = nvml.POWER_SCOPE_MEMORY
)

var powerFields = []collectors.Field{
	collectors.NewField(nvml.FI_DEV_POWER_AVERAGE, scopeGPU, Power, 1e-3, "average", "gpu"),
	collectors.NewField(nvml.FI_DEV_POWER_INSTANT, scopeGPU, Power, 1e-3, "instant", "gpu"),
	collectors.NewField(nvml.FI_DEV_POWER_AVERAGE, scopeModule, Power, 1e-3, "average", "module"),
	collectors.NewField(nvml.FI_DEV_POWER_INSTANT, scopeModule, Power, 1e-3, "instant", "module"),
	collectors.NewField(nvml.FI_DEV_POWER_AVERAGE, scopeMemory, Power, 1e-3, "average", "memory"),
}

var _ = collectors.Register(collectors.Collector{
	Name:    "power",
	Doc:     "Power draw.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{Power},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		out.Fields(g, powerFields)
		if len(out.Samples) == 0 { // before Ampere and on the A100, where this call returns an instant value
			mw, ret := g.GetPowerUsage()
			out.Put(Power, float64(mw)/1000, ret, "instant", "gpu")
		}
	},
})
