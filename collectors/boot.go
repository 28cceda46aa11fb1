package collectors

import "gpusteward/collectors/host"

// NodeBoot is the boot time of the host.
var NodeBoot = HostGauge("nvgpu_node_boot_timestamp_seconds", "Unix time of the host's boot.")

var _ = Register(Collector{
	Name:    "boot",
	Doc:     "Boot time of the host.",
	Tier:    Slow,
	Metrics: []*Metric{NodeBoot},
	Kernel: func(k host.Kernel) func(out *Readings) {
		return func(out *Readings) {
			t, err := k.Booted()
			out.Put(NodeBoot, float64(t.Unix()), OfKernel(err))
		}
	},
})
