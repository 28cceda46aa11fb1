package health

import "gpusteward/collectors"

// OrphanMemory is memory without an owner.
var OrphanMemory = collectors.Gauge("nvgpu_orphan_memory_bytes", "Device memory in use that belongs to no process and no virtual GPU that is to be seen.")

// orphans adds OrphanMemory to s, for GPUs whose processes are known. Where a
// process's memory is not known it may have all of it.
func orphans(s *Snapshot) {
	owned := map[Entity]float64{}
	running := map[Entity]float64{}
	for _, m := range []*collectors.Metric{collectors.WorkloadMemory, collectors.VGPUMemoryUsed} {
		for _, sample := range s.Of(m) {
			owned[entityOf(sample, nil)] += sample.Value
		}
	}
	for _, sample := range s.Of(collectors.Processes) {
		running[entityOf(sample, nil)] += sample.Value
	}
	for _, sample := range s.Of(collectors.MemoryBytes) {
		gpu := entityOf(sample, nil)
		n, known := running[gpu]
		if !known || sample.Labels[2] != "used" {
			continue
		}
		orphan := 0.
		if n == 0 {
			orphan = max(0, sample.Value-owned[gpu])
		}
		s.Add(collectors.Sample{Metric: OrphanMemory, Labels: sample.Labels[:2:2], Value: orphan})
	}
}
