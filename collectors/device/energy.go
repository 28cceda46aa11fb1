package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// Energy is the energy used by the board since the driver was loaded. NVML
// counts millijoules.
var Energy = collectors.Counter("nvgpu_energy_joules_total",
	"Joules used since the driver was loaded; scope module includes gpu.", "scope")

var _ = collectors.Register(collectors.Collector{
	Name:    "energy",
	Doc:     "Energy used; a read takes the driver 3 to 5 ms.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{Energy},
	Read: collectors.ReadFields(
		collectors.NewField(nvml.FI_DEV_ENERGY, scopeGPU, Energy, 1e-3, "gpu"),
		collectors.NewField(nvml.FI_DEV_ENERGY, scopeModule, Energy, 1e-3, "module"),
	),
})
