package health

import (
	"regexp"
	"slices"
	"strconv"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// OrphanMemory is memory in use without an owner.
var OrphanMemory = collectors.Gauge("nvgpu_orphan_memory_bytes",
	"Device memory in use that belongs to no visible process and no virtual GPU. gi is the MIG GPU instance, or empty.",
	"gi")

// superchips are the names of GPUs that share a package with a processor.
var superchips = regexp.MustCompile(`\bG[HB]\d+\b`)

// ofHost returns the GPUs whose memory the kernel uses too, because it is a
// NUMA node of the host. Older drivers tell neither the addressing mode nor the
// links to the processor.
func ofHost(s *derived.Snapshot) map[incident.Entity]bool {
	all := map[incident.Entity]bool{}
	name, node := slices.Index(device.Info.Labels, "name"), slices.Index(device.Info.Labels, "numa_node")
	for _, info := range s.Of(device.Info) {
		n, err := strconv.Atoi(info.Labels[node])
		all[incident.EntityOf(info, nil)] = superchips.MatchString(info.Labels[name]) || err == nil && n > 0
	}
	for _, mode := range s.Of(device.AddressingMode) {
		if gpu := incident.EntityOf(mode, nil); mode.Labels[2] == "ats" && mode.Value == 1 {
			all[gpu] = true
		}
	}
	for _, link := range s.Of(links.C2CUp) {
		all[incident.EntityOf(link, nil)] = true
	}
	return all
}

// orphans adds OrphanMemory to s, for GPUs with known processes, or for their
// instances while others work. If the memory of a process is unknown, the
// process may own all of it. The kernel itself uses memory that is a NUMA node
// of the host, as on a GPU that shares its addresses with a Grace CPU: such
// memory cannot lack an owner.
func orphans(s *derived.Snapshot) {
	shared := ofHost(s)
	owned := map[incident.Entity]float64{}
	running := map[incident.Entity]float64{}
	type place struct { // a part of a GPU: an instance, or a workload
		incident.Entity
		name string
	}
	used, known := map[place]bool{}, map[place]bool{}
	for _, m := range []*collectors.Metric{workloads.WorkloadMemory, device.VGPUMemoryUsed} {
		for _, sample := range s.Of(m) {
			gpu := incident.EntityOf(sample, nil)
			owned[gpu] += sample.Value
			if known[place{gpu, sample.Labels[2]}] = true; m == workloads.WorkloadMemory {
				used[place{gpu, sample.Labels[3]}] = true
			}
		}
	}
	for _, sample := range s.Of(workloads.Processes) {
		running[incident.EntityOf(sample, nil)] += sample.Value
	}
	vague := map[incident.Entity]bool{} // with a workload whose memory is unknown
	for _, sample := range s.Of(workloads.WorkloadProcesses) {
		gpu := incident.EntityOf(sample, nil)
		vague[gpu] = vague[gpu] || !known[place{gpu, sample.Labels[2]}]
	}
	for _, sample := range s.Of(device.MemoryBytes) {
		gpu := incident.EntityOf(sample, nil)
		n, known := running[gpu]
		if !known || shared[gpu] || sample.Labels[2] != "used" {
			continue
		}
		orphan := 0.
		if n == 0 {
			orphan = max(0, sample.Value-owned[gpu])
		}
		s.Add(collectors.Sample{Metric: OrphanMemory, Labels: append(sample.Labels[:2:2], ""), Value: orphan})
	}
	for _, sample := range s.Of(device.MIGMemory) {
		gpu := incident.EntityOf(sample, nil)
		whole := used[place{gpu, ""}] // the driver does not tell the instance of a process
		if running[gpu] == 0 || shared[gpu] || vague[gpu] || whole || sample.Labels[3] != "used" {
			continue
		}
		s.Add(collectors.Sample{Metric: OrphanMemory, Labels: sample.Labels[:3:3],
			Value: sample.Value * collectors.Bool(!used[place{gpu, sample.Labels[2]}])})
	}
}
