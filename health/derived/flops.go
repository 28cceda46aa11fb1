package derived

import (
	"gpusteward/collectors"
	"gpusteward/collectors/activity"
)

// JobFlops is the estimate of a GPU's operations, for the workload that uses it
// alone: nothing tells the operations of two workloads apart.
var JobFlops = collectors.Gauge("nvgpu_job_flops",
	"Estimate of the floating-point operations that the workload does on the GPU in a second: all that the GPU does "+
		"(nvgpu_gpm_flops). Absent while several workloads use the GPU.", "workload")

// flops puts the estimates.
func (d *Metrics) flops(s *Snapshot) {
	for _, sample := range s.Of(activity.GPMFlops) {
		if c := d.known(sample.Labels); c != nil && len(c.jobs) == 1 {
			d.put(JobFlops, []string{c.gpu, c.uuid, c.jobs[0]}, sample.Value)
		}
	}
}
