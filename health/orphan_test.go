package health

import (
	"slices"
	"testing"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
)

// TestMemoryWithoutAnOwner checks which memory has no owner.
func TestMemoryWithoutAnOwner(t *testing.T) {
	const used = 10e9
	processes := func(n float64) collectors.Sample { return on("0", workloads.Processes, n, "compute") }
	workload := func(v float64) collectors.Sample { return on("0", workloads.WorkloadMemory, v, "a", "") }
	info := func(name, node string) collectors.Sample {
		labels := make([]string, len(device.Info.Labels)-2)
		labels[0], labels[slices.Index(device.Info.Labels, "numa_node")-2] = name, node
		return on("0", device.Info, 1, labels...)
	}
	for name, c := range map[string]struct {
		samples []collectors.Sample
		want    float64 // -1: none
	}{
		"no process":                   {[]collectors.Sample{processes(0)}, used},
		"a process":                    {[]collectors.Sample{processes(1)}, 0},
		"processes of another type":    {[]collectors.Sample{processes(0), on("0", workloads.Processes, 1, "graphics")}, 0},
		"one after another":            {[]collectors.Sample{on("0", workloads.Processes, 1, "graphics"), processes(0)}, 0},
		"processes are not known":      {nil, -1},
		"a workload without processes": {[]collectors.Sample{processes(0), workload(4e9)}, used - 4e9},
		"two workloads": {[]collectors.Sample{processes(0), workload(4e9),
			on("0", workloads.WorkloadMemory, 3e9, "b", "")}, used - 7e9},
		"a workload that has more": {[]collectors.Sample{processes(0), workload(11e9)}, 0},
		"a virtual GPU":            {[]collectors.Sample{processes(0), on("0", device.VGPUMemoryUsed, 9e9, "7")}, used - 9e9},
		"another GPU's":            {[]collectors.Sample{processes(0), on("1", workloads.WorkloadMemory, 9e9, "a", "")}, used},
		"it is the host's":         {[]collectors.Sample{processes(0), on("0", device.AddressingMode, 1, "ats")}, -1},
		"it is not the host's":     {[]collectors.Sample{processes(0), on("0", device.AddressingMode, 1, "hmm")}, used},
		"it is not the host's as one thinks": {[]collectors.Sample{processes(0),
			on("0", device.AddressingMode, 0, "ats")}, used},
		"it has a link to its processor": {[]collectors.Sample{processes(0), on("0", links.C2CUp, 1, "0")}, -1},
		"it is a superchip":              {[]collectors.Sample{processes(0), info("NVIDIA GH200 480GB", "")}, -1},
		"it is a board":                  {[]collectors.Sample{processes(0), info("NVIDIA B200", "0")}, used},
		"it is a NUMA node":              {[]collectors.Sample{processes(0), info("NVIDIA Rubin", "2")}, -1},
		"that is down":                   {[]collectors.Sample{processes(0), on("0", links.C2CUp, 0, "0")}, -1},
	} {
		s := derived.NewSnapshot(append(c.samples, on("0", device.MemoryBytes, 70e9, "free"),
			on("0", device.MemoryBytes, used, "used"), on("0", device.MemoryBytes, 80e9, "total")))
		if orphans(s); valueOf(s, OrphanMemory, "0", "") != c.want || len(s.Of(OrphanMemory)) > 1 {
			t.Errorf("%s: %v", name, s.Of(OrphanMemory))
		}
	}
}

// TestMemoryOfAnInstanceWithoutAnOwner has two instances in use, and work on one of them.
func TestMemoryOfAnInstanceWithoutAnOwner(t *testing.T) {
	for name, c := range map[string]struct {
		sample collectors.Sample
		want   float64 // of instance 2; -1: none
	}{
		"another one's work":                 {on("0", workloads.WorkloadProcesses, 1, "a", "compute"), 5e9},
		"its own work":                       {on("0", workloads.WorkloadMemory, 1e9, "b", "2"), 0},
		"work that does not tell its memory": {on("0", workloads.WorkloadProcesses, 1, "b", "compute"), -1},
		"work of an unknown instance":        {on("0", workloads.WorkloadMemory, 1e9, "b", ""), -1},
		"the host's memory":                  {on("0", device.AddressingMode, 1, "ats"), -1},
	} {
		s := derived.NewSnapshot([]collectors.Sample{c.sample, on("0", workloads.Processes, 1, "compute"),
			on("0", workloads.WorkloadMemory, 4e9, "a", "1"), on("0", device.MIGMemory, 4e9, "1", "used"),
			on("0", device.MIGMemory, 5e9, "2", "used"), on("0", device.MIGMemory, 9e9, "2", "free")})
		if orphans(s); valueOf(s, OrphanMemory, "0", "2") != c.want || valueOf(s, OrphanMemory, "0", "1") > 0 {
			t.Errorf("%s: %v", name, s.Of(OrphanMemory))
		}
	}
}
