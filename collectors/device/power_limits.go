package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// PowerLimit holds the limits of the board's power. NVML gives milliwatts.
var PowerLimit = collectors.Gauge("nvgpu_power_limit_watts",
	"Limits of the board's power; enforced is the one in effect.", "limit")

var _ = collectors.Register(collectors.Collector{
	Name:    "power_limits",
	Doc:     "Limits of the board's power.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{PowerLimit},
	Read: collectors.ReadFields(
		collectors.NewField(nvml.FI_DEV_POWER_CURRENT_LIMIT, scopeGPU, PowerLimit, 1e-3, "enforced"),
		collectors.NewField(nvml.FI_DEV_POWER_REQUESTED_LIMIT, scopeGPU, PowerLimit, 1e-3, "requested"),
		collectors.NewField(nvml.FI_DEV_POWER_DEFAULT_LIMIT, scopeGPU, PowerLimit, 1e-3, "default"),
		collectors.NewField(nvml.FI_DEV_POWER_MIN_LIMIT, scopeGPU, PowerLimit, 1e-3, "min"),
		collectors.NewField(nvml.FI_DEV_POWER_MAX_LIMIT, scopeGPU, PowerLimit, 1e-3, "max"),
	),
})
