package faults

import (
	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// DriverBlockedTasks comes from the kernel: the threads of a hung driver sleep
// uninterruptibly.
var DriverBlockedTasks = collectors.HostGauge("nvgpu_driver_blocked_tasks",
	"Threads of NVIDIA's kernel modules in uninterruptible sleep; brief sleeps are normal.")

var _ = collectors.Register(collectors.Collector{
	Name:    "blocked_tasks",
	Doc:     "Tasks stuck in the driver, from the state of every process.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{DriverBlockedTasks},
	Kernel: func(k host.Kernel) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			n, err := k.BlockedTasks()
			out.Put(DriverBlockedTasks, float64(n), collectors.OfKernel(err))
		}
	},
})
