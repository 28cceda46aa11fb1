package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// TestChurn checks that processes come and go.
func TestChurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := gpuOf(t, begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "churn"}}}, Options{}), 0)
		seen, most := map[uint32]bool{}, 0
		for range 120 {
			time.Sleep(time.Second)
			procs := must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses())
			most = max(most, len(procs))
			for _, p := range procs {
				seen[p.Pid] = true
			}
		}
		if len(seen) < 15 || most > churnSlots || most < 2 {
			t.Errorf("%d processes in two minutes, at most %d at once", len(seen), most)
		}
	})
}

// TestOwnProcesses gives a GPU the scenario's processes.
func TestOwnProcesses(t *testing.T) {
	h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "full", Processes: []scenarios.Process{
		{PID: 41, Name: "a", Memory: 1000, Share: 3}, {PID: 42, Name: "b", Memory: 2000},
		{PID: 43, Name: "x", Type: "graphics"}, {PID: 44, MemoryUnknown: true},
	}}}}, Options{})
	d := gpuOf(t, h, 0)
	procs := must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses())
	if len(procs) != 3 || procs[0].Pid != 41 || procs[1].UsedGpuMemory != 2000<<20 ||
		procs[2].UsedGpuMemory != notAvailable {
		t.Errorf("processes are %+v", procs)
	}
	if g := must[[]nvml.ProcessInfo](t)(d.GetGraphicsRunningProcesses()); len(g) != 1 || g[0].Pid != 43 {
		t.Errorf("graphics are %+v", g)
	}
	if name := must[string](t)(h.SystemGetProcessName(42)); name != "b" {
		t.Errorf("name is %q", name)
	}
}

// TestCrowd has 64 pods of eight processes each.
func TestCrowd(t *testing.T) {
	h := begin(t, embedded(t, "crowd"), Options{})
	pods := map[string]int{}
	for _, p := range must[[]nvml.ProcessInfo](t)(gpuOf(t, h, 0).GetComputeRunningProcesses()) {
		facts, ok := h.Process(int(p.Pid))
		if !ok {
			t.Errorf("process %d is not known", p.Pid)
		}
		pods[facts.Cgroup]++
	}
	if len(pods) != 64 || len(h.ContainerNames()) != 64 {
		t.Errorf("%d pods, %d names", len(pods), len(h.ContainerNames()))
	}
	for cgroup, n := range pods {
		if n != 8 {
			t.Errorf("%d processes in %s", n, cgroup)
		}
	}
}
