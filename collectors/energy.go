package collectors

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// Energy is the energy used by the board since the driver was loaded. NVML
// counts millijoules.
var Energy = Counter("nvgpu_energy_joules_total",
	"Joules used since the driver was loaded; scope module includes gpu.", "scope")

var _ = Register(Collector{
	Name:    "energy",
	Doc:     "Energy used; a read takes the driver 3 to 5 ms.",
	Tier:    Medium,
	Metrics: []*Metric{Energy},
	Read: ReadFields(
		NewField(nvml.FI_DEV_ENERGY, scopeGPU, Energy, 1e-3, "gpu"),
		NewField(nvml.FI_DEV_ENERGY, scopeModule, Energy, 1e-3, "module"),
	),
})
