package collectors

import "gpusteward/collectors/host"

// DriverBlockedTasks comes from the kernel: callers of a hung driver sleep
// uninterruptibly.
var DriverBlockedTasks = HostGauge("nvgpu_driver_blocked_tasks",
	"Threads of NVIDIA's kernel modules and NVIDIA programs in uninterruptible sleep; brief sleeps are normal.")

var _ = Register(Collector{
	Name:    "blocked_tasks",
	Doc:     "Tasks stuck in the driver, from the state of every process.",
	Tier:    Medium,
	Metrics: []*Metric{DriverBlockedTasks},
	Kernel: func(k host.Kernel) func(out *Readings) {
		return func(out *Readings) {
			n, err := k.BlockedTasks()
			out.Put(DriverBlockedTasks, float64(n), OfKernel(err))
		}
	},
})
