package collectors

import "gpusteward/collectors/host"

// DriverBlockedTasks is seen from outside of the driver: when it hangs, those
// who call it sleep where no signal wakes them.
var DriverBlockedTasks = HostGauge("nvgpu_driver_blocked_tasks", "Threads of NVIDIA's kernel modules, and programs of NVIDIA's, in uninterruptible sleep; for a moment that is normal.")

var _ = Register(Collector{
	Name:    "blocked_tasks",
	Doc:     "Tasks of the driver that hang in the kernel, from the state of every process.",
	Tier:    Medium,
	Metrics: []*Metric{DriverBlockedTasks},
	Kernel: func(k host.Kernel) func(out *Readings) {
		return func(out *Readings) {
			n, err := k.BlockedTasks()
			out.Put(DriverBlockedTasks, float64(n), ofKernel(err))
		}
	},
})
