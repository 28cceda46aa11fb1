package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestChurn sees processes come and go.
func TestChurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := gpuOf(t, begin(t, Scenario{GPUs: []GPU{{Load: "churn"}}}, Options{}), 0)
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
	h := begin(t, Scenario{GPUs: []GPU{{Load: "full", Processes: []Process{
		{PID: 41, Name: "a", Memory: 1000, Share: 3}, {PID: 42, Name: "b", Memory: 2000}, {PID: 43, Name: "x", Type: "graphics"}, {PID: 44, Type: "mps"},
	}}}}, Options{})
	d := gpuOf(t, h, 0)
	procs := must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses())
	if len(procs) != 2 || procs[0].Pid != 41 || procs[1].UsedGpuMemory != 2000<<20 {
		t.Errorf("processes are %+v", procs)
	}
	if g, m := must[[]nvml.ProcessInfo](t)(d.GetGraphicsRunningProcesses()), must[[]nvml.ProcessInfo](t)(d.GetMPSComputeRunningProcesses()); len(g) != 1 || len(m) != 1 {
		t.Errorf("graphics are %+v, MPS %+v", g, m)
	}
	use := must[[]nvml.ProcessUtilizationSample](t)(d.GetProcessUtilization(0))
	if len(use) != 4 || !near(float64(use[0].SmUtil), 3*float64(use[1].SmUtil), 3) {
		t.Errorf("utilization is %+v", use)
	}
	if name := must[string](t)(h.SystemGetProcessName(42)); name != "b" {
		t.Errorf("name is %q", name)
	}
}
