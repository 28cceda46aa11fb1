package device

import (
	"fmt"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// DriverInfo holds the versions of the open driver.
var DriverInfo = collectors.HostGauge("nvgpu_driver_info", "Versions of the driver, always 1.",
	"driver_version", "driver_branch", "cuda_version", "nvml_version")

var _ = collectors.Register(collectors.Collector{
	Name:    "driver",
	Doc:     "Versions of the driver.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{DriverInfo},
	Host: func(l *gpu.Library) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			version, ret := l.SystemGetDriverVersion()
			branch, bret := l.SystemGetDriverBranch()
			cuda, cret := l.SystemGetCudaDriverVersion()
			out.Put(DriverInfo, 1, ret, version, gpu.Text(gpu.String(branch.Branch[:]), bret),
				gpu.Text(fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10), cret), gpu.Text(l.SystemGetNVMLVersion()))
		}
	},
})
