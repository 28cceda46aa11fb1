package collectors

import (
	"fmt"

	"gpusteward/collectors/gpu"
)

// DriverInfo holds the versions of the open driver.
var DriverInfo = HostGauge("nvgpu_driver_info", "Versions of the driver, always 1.",
	"driver_version", "driver_branch", "cuda_version", "nvml_version")

var _ = Register(Collector{
	Name:    "driver",
	Doc:     "Versions of the driver.",
	Tier:    Static,
	Metrics: []*Metric{DriverInfo},
	Host: func(l *gpu.Library) func(out *Readings) {
		return func(out *Readings) {
			version, ret := l.SystemGetDriverVersion()
			branch, bret := l.SystemGetDriverBranch()
			cuda, cret := l.SystemGetCudaDriverVersion()
			out.Put(DriverInfo, 1, ret, version, Text(gpu.String(branch.Branch[:]), bret),
				Text(fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10), cret), Text(l.SystemGetNVMLVersion()))
		}
	},
})
