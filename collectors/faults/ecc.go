package faults

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// ECC errors: volatile counts since the driver was loaded, aggregate counts
// over the board's life. Aggregate includes volatile: never add the scopes.
var (
	ECCErrors = collectors.Counter("nvgpu_ecc_errors_total",
		"ECC errors; scope aggregate includes volatile.", "severity", "scope")
	ECCErrorsByLocation = collectors.Counter("nvgpu_ecc_errors_by_location_total",
		"ECC errors by location; scope aggregate includes volatile.", "severity", "scope", "location")
)

var eccSeverities = []struct {
	name string
	id   nvml.MemoryErrorType
}{
	{"corrected", nvml.MEMORY_ERROR_TYPE_CORRECTED}, {"uncorrected", nvml.MEMORY_ERROR_TYPE_UNCORRECTED},
}

var eccScopes = []struct {
	name string
	id   nvml.EccCounterType
}{
	{"volatile", nvml.VOLATILE_ECC}, {"aggregate", nvml.AGGREGATE_ECC},
}

var eccLocations = []struct {
	name string
	id   nvml.MemoryLocation
}{
	{"dram", nvml.MEMORY_LOCATION_DRAM}, {"sram", nvml.MEMORY_LOCATION_SRAM}, {"l1", nvml.MEMORY_LOCATION_L1_CACHE},
	{"l2", nvml.MEMORY_LOCATION_L2_CACHE}, {"register", nvml.MEMORY_LOCATION_REGISTER_FILE},
	{"texture", nvml.MEMORY_LOCATION_TEXTURE_MEMORY}, {"cbu", nvml.MEMORY_LOCATION_CBU},
}

var _ = collectors.Register(collectors.Collector{
	Name:    "ecc",
	Doc:     "ECC errors, in total and by location.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{ECCErrors, ECCErrorsByLocation},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		for _, severity := range eccSeverities {
			for _, scope := range eccScopes {
				n, ret := g.GetTotalEccErrors(severity.id, scope.id)
				out.Put(ECCErrors, float64(n), ret, severity.name, scope.name)
				for _, l := range eccLocations {
					n, ret := g.GetMemoryErrorCounter(severity.id, scope.id, l.id)
					out.Put(ECCErrorsByLocation, float64(n), gpu.Absent(ret), severity.name, scope.name, l.name)
				}
			}
		}
	},
})
