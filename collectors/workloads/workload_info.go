package workloads

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// WorkloadInfo is the identity of a workload; join with it on workload.
var (
	WorkloadInfo = collectors.HostGauge("nvgpu_workload_info",
		"Identity of the workload, always 1.",
		"workload", "kind", "namespace", "pod", "container", "container_id", "image",
		"unit", "slice", "uid", "slurm_job", "slurm_step", "slurm_user", "slurm_account", "slurm_partition")
	WorkloadStart = collectors.HostGauge("nvgpu_workload_start_timestamp_seconds",
		"Unix time at which the workload's oldest process on a GPU started.", "workload")
	AttributionErrors = collectors.HostCounter("gpusteward_attribution_errors_total",
		"Failures to find the owner of a process, by the source asked.", "source")
)

var _ = collectors.Register(collectors.Collector{
	Name: "workload_info",
	Doc: "Identities of the workloads on the GPUs, from their cgroups, and names from Docker, Podman, the " +
		"kubelet or Slurm.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{WorkloadInfo, WorkloadStart, AttributionErrors, AllocationsKnown},
	Host: func(*gpu.Library) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			began := map[string]time.Time{}
			who := map[string]*host.Workload{}
			for _, p := range out.Processes.InUse() {
				if w := p.Workload; w != nil {
					if t, known := began[w.Key]; !known || p.Began.Before(t) {
						began[w.Key], who[w.Key] = p.Began, w
					}
				}
			}
			for _, key := range slices.Sorted(maps.Keys(who)) {
				w := who[key]
				out.Set(WorkloadInfo, 1, key, w.Kind, w.Namespace, w.Pod, w.Container,
					w.ContainerID[:min(12, len(w.ContainerID))], w.Image,
					w.Unit, w.Slice, strconv.Itoa(w.UID), w.Job, w.Step, w.User, w.Account, w.Partition)
				out.Set(WorkloadStart, float64(host.Rebased(began[key], out.Now).UnixMilli())/1e3, key)
			}
			out.Processes.Errors(func(source string, n uint64) { out.Set(AttributionErrors, float64(n), source) })
			for source, known := range out.Allocations().Known {
				out.Set(AllocationsKnown, collectors.Bool(known), source)
			}
		}
	},
})
