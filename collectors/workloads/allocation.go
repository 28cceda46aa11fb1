package workloads

import (
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// GPUs allocated to workloads, used or not.
var (
	AllocationInfo = collectors.Gauge("nvgpu_allocation_info",
		"Allocation of the GPU to the workload, always 1.", "workload", "source")
	AllocationClaimInfo = collectors.Gauge("nvgpu_allocation_claim_info",
		"Claim for dynamic resource allocation that gave the GPU, or a part of it, to the workload, always 1.",
		"workload", "namespace", "claim", "driver", "pool", "device")
	AllocationsKnown = collectors.HostGauge("gpusteward_allocations_known",
		"1 if the source reports all allocations now; 0 if GPUs without an allocation may be allocated. Absent if the "+
			"source is not on this host.", "source")
	AllocatedIdle = collectors.Counter("nvgpu_allocated_idle_seconds_total",
		"Seconds the GPU was allocated to the workload and did no work for it.", "workload")
)

// allocations shows the allocations and counts idle time: the window of the
// driver's samples if it saw no work in it, or the whole time if there was no
// process.
func (u *users) allocations(g *gpu.Device, out *collectors.Readings, workloads []*workload, window time.Duration) {
	var since time.Duration
	if !u.allocated.IsZero() {
		since = out.Now.Sub(u.allocated)
	}
	u.allocated = out.Now
	for _, a := range out.Allocations().All {
		if len(places(a, g)) == 0 {
			continue
		}
		key := a.Key()
		there, busy := false, false
		for _, w := range workloads {
			if a.For(*w.owner) {
				there, busy = true, busy || w.use != engines{}
			}
		}
		idle := since
		if there {
			idle = window
		}
		if busy {
			idle = 0
		}
		u.present[key] = out.Now
		out.Set(AllocationInfo, 1, key, a.Source())
		for _, c := range a.Claims {
			if _, ok := named(c, g); ok {
				out.Set(AllocationClaimInfo, 1, key, c.Namespace, c.Name, c.Driver, c.Pool, c.Device)
			}
		}
		out.Add(AllocatedIdle, idle.Seconds(), key)
	}
}
