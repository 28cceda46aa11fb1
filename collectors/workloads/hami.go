package workloads

import (
	"strconv"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// Values that HAMi-core keeps in memory writable by every process of its
// container: a hint for hosts that run it, never a measurement.
var (
	HAMiMemoryLimit = collectors.Gauge("nvgpu_hami_memory_limit_bytes",
		"Bytes of GPU memory granted to the workload according to HAMi-core; the workload could forge it.", "workload")
	HAMiMemoryUsed = collectors.Gauge("nvgpu_hami_memory_used_bytes",
		"Bytes of GPU memory used by the workload according to HAMi-core; the workload could forge it.", "workload")
	HAMiSMLimit = collectors.Gauge("nvgpu_hami_sm_limit_ratio",
		"Share of GPU time granted to the workload according to HAMi-core; the workload could forge it.", "workload")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "hami",
	Doc:     "Claims of HAMi-core about the containers that it limits, on hosts that run it.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{HAMiMemoryLimit, HAMiMemoryUsed, HAMiSMLimit},
	Host: func(*gpu.Library) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			if out.Config.HAMi == "" {
				return
			}
			users, seen := out.Processes.InUse(), map[[2]string]bool{}
			for _, file := range host.Regions(out.Config.HAMi) {
				if region, err := host.ReadRegion(file.Path); err == nil {
					putRegion(out, file, region, users, seen)
				}
			}
		}
	},
})

// putRegion puts the claims of a region about a workload with a process in it. The
// kernel confirms that the process belongs to the region's pod, and the kubelet
// names the container. seen keeps two regions from claiming the same. An
// impossible claim is not a failure of the collector.
func putRegion(out *collectors.Readings, file host.RegionFile, region host.Region, users []host.Process,
	seen map[[2]string]bool) {
	used := make([]uint64, len(region.Devices))
	workload := ""
	for _, p := range users {
		claim, ok := region.Processes[p.PID]
		w := p.Workload
		if !ok || w == nil || w.PodUID != file.PodUID || w.Pod != "" && w.Container != file.Container {
			continue
		}
		workload = w.Key
		for i := range min(len(used), len(claim.Memory)) {
			used[i] += claim.Memory[i]
		}
	}
	if workload == "" {
		return
	}
	for i, d := range region.Devices {
		for _, g := range out.Peers() {
			claim := [2]string{g.UUID, workload}
			if g.UUID != d.UUID || seen[claim] {
				continue
			}
			seen[claim] = true
			put := func(m *collectors.Metric, v float64, claimed bool) {
				if claimed && m.Plausible(v) {
					out.Set(m, v, strconv.Itoa(g.Index), g.UUID, workload)
				}
			}
			put(HAMiMemoryUsed, float64(used[i]), true)
			put(HAMiMemoryLimit, float64(d.Memory), d.Memory > 0)
			put(HAMiSMLimit, float64(d.SM)/100, d.SM > 0 && d.SM <= 100)
		}
	}
}
