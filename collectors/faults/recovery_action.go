package faults

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// RecoveryAction is the driver's own verdict on the GPU.
var RecoveryAction = collectors.Gauge("nvgpu_recovery_action",
	"Recovery action requested by the driver: 0 none, 1 GPU reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 "+
		"recover the IMEX domain.")

var _ = collectors.Register(collectors.Collector{
	Name:    "recovery_action",
	Doc:     "The driver's own verdict on the GPU.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{RecoveryAction},
	Read:    collectors.ReadFields(collectors.NewField(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0, RecoveryAction, 1)),
})
