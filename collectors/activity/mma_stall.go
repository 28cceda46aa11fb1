package activity

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// MMAStall is the share of stalled tensor work (field 297, newer boards only).
var MMAStall = collectors.Gauge("nvgpu_mma_stall_ratio", "Share of time in which the tensor cores stalled.")

var _ = collectors.Register(collectors.Collector{
	Name:    "mma_stall",
	Doc:     "Stalls of the tensor cores.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{MMAStall},
	Read:    collectors.ReadFields(collectors.NewField(nvml.FI_DEV_MMA_STALL_PERCENT, 0, MMAStall, 1e-2)),
})
