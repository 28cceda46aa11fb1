package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// Power smoothing and capping on newer boards.
var (
	EDPPMultiplier = collectors.Gauge("nvgpu_edpp_multiplier_ratio", "Multiplier of the board's peak power limit (EDPp).")
	PowerSmoothing = collectors.Gauge("nvgpu_power_smoothing_enabled", "Whether power smoothing is on.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "power_management",
	Doc:     "Peak power multiplier and power smoothing.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{EDPPMultiplier, PowerSmoothing},
	Read: collectors.ReadFields(
		collectors.NewField(nvml.FI_DEV_EDPP_MULTIPLIER, 0, EDPPMultiplier, 1e-2),
		collectors.NewField(nvml.FI_PWR_SMOOTHING_ENABLED, 0, PowerSmoothing, 1),
	),
})
