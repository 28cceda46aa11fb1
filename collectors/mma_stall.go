package collectors

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// MMAStall is the share of stalled tensor work (field 297, newer boards only).
var MMAStall = Gauge("nvgpu_mma_stall_ratio", "Share of time in which the tensor cores stalled.")

var _ = Register(Collector{
	Name:    "mma_stall",
	Doc:     "Stalls of the tensor cores.",
	Tier:    Medium,
	Metrics: []*Metric{MMAStall},
	Read:    ReadFields(NewField(nvml.FI_DEV_MMA_STALL_PERCENT, 0, MMAStall, 1e-2)),
})
