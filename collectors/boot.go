package collectors

import "gpusteward/collectors/host"

// NodeBoot is when the host was booted.
var NodeBoot = HostGauge("nvgpu_node_boot_timestamp_seconds", "When the host was booted, as a Unix time.")

var _ = Register(Collector{
	Name:    "boot",
	Doc:     "When the host was booted.",
	Tier:    Slow,
	Metrics: []*Metric{NodeBoot},
	Kernel: func(k host.Kernel) func(out *Readings) {
		return func(out *Readings) {
			t, err := k.Booted()
			out.Put(NodeBoot, float64(t.Unix()), ofKernel(err))
		}
	},
})
