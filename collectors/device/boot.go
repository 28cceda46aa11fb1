package device

import (
	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// NodeBoot is the boot time of the host.
var NodeBoot = collectors.HostGauge("nvgpu_node_boot_timestamp_seconds", "Unix time of the host's boot.")

var _ = collectors.Register(collectors.Collector{
	Name:    "boot",
	Doc:     "Boot time of the host.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{NodeBoot},
	Kernel: func(k host.Kernel) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			t, err := k.Booted()
			out.Put(NodeBoot, float64(t.Unix()), collectors.OfKernel(err))
		}
	},
})
