package collectors

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// PowerLimit holds the limits of the board's power. NVML gives milliwatts.
var PowerLimit = Gauge("nvgpu_power_limit_watts",
	"Limits of the board's power; enforced is the one in effect.", "limit")

var _ = Register(Collector{
	Name:    "power_limits",
	Doc:     "Limits of the board's power.",
	Tier:    Medium,
	Metrics: []*Metric{PowerLimit},
	Read: ReadFields(
		NewField(nvml.FI_DEV_POWER_CURRENT_LIMIT, scopeGPU, PowerLimit, 1e-3, "enforced"),
		NewField(nvml.FI_DEV_POWER_REQUESTED_LIMIT, scopeGPU, PowerLimit, 1e-3, "requested"),
		NewField(nvml.FI_DEV_POWER_DEFAULT_LIMIT, scopeGPU, PowerLimit, 1e-3, "default"),
		NewField(nvml.FI_DEV_POWER_MIN_LIMIT, scopeGPU, PowerLimit, 1e-3, "min"),
		NewField(nvml.FI_DEV_POWER_MAX_LIMIT, scopeGPU, PowerLimit, 1e-3, "max"),
	),
})
