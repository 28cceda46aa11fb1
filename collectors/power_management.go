package collectors

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// Power smoothing and capping on newer boards.
var (
	EDPPMultiplier = Gauge("nvgpu_edpp_multiplier_ratio", "Multiplier of the board's peak power limit (EDPp).")
	PowerSmoothing = Gauge("nvgpu_power_smoothing_enabled", "Whether power smoothing is on.")
)

var _ = Register(Collector{
	Name:    "power_management",
	Doc:     "Peak power multiplier and power smoothing.",
	Tier:    Slow,
	Metrics: []*Metric{EDPPMultiplier, PowerSmoothing},
	Read: ReadFields(
		NewField(nvml.FI_DEV_EDPP_MULTIPLIER, 0, EDPPMultiplier, 1e-2),
		NewField(nvml.FI_PWR_SMOOTHING_ENABLED, 0, PowerSmoothing, 1),
	),
})
