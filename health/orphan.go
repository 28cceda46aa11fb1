package health

import (
	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// OrphanMemory is memory in use without an owner.
var OrphanMemory = collectors.Gauge("nvgpu_orphan_memory_bytes",
	"Device memory in use that belongs to no visible process and no virtual GPU.")

// orphans adds OrphanMemory to s, for GPUs with known processes. If the memory
// of a process is unknown, the process may own all of it. The kernel itself
// uses memory that is a NUMA node of the host, as on a GPU that shares its
// addresses with a Grace CPU: such memory cannot lack an owner.
func orphans(s *derived.Snapshot) {
	ofHost := map[incident.Entity]bool{}
	for _, mode := range s.Of(device.AddressingMode) {
		ofHost[incident.EntityOf(mode, nil)] = mode.Labels[2] == "ats" && mode.Value == 1
	}
	for _, link := range s.Of(links.C2CUp) {
		ofHost[incident.EntityOf(link, nil)] = true
	}
	owned := map[incident.Entity]float64{}
	running := map[incident.Entity]float64{}
	for _, m := range []*collectors.Metric{workloads.WorkloadMemory, device.VGPUMemoryUsed} {
		for _, sample := range s.Of(m) {
			owned[incident.EntityOf(sample, nil)] += sample.Value
		}
	}
	for _, sample := range s.Of(workloads.Processes) {
		running[incident.EntityOf(sample, nil)] += sample.Value
	}
	for _, sample := range s.Of(device.MemoryBytes) {
		gpu := incident.EntityOf(sample, nil)
		n, known := running[gpu]
		if !known || ofHost[gpu] || sample.Labels[2] != "used" {
			continue
		}
		orphan := 0.
		if n == 0 {
			orphan = max(0, sample.Value-owned[gpu])
		}
		s.Add(collectors.Sample{Metric: OrphanMemory, Labels: sample.Labels[:2:2], Value: orphan})
	}
}
