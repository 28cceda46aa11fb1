package enforcer

import (
	"math"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/audit"
)

// TestOthersUseTheGPU compares the part of a GPU's time that the neighbours of a
// workload use, by the driver's samples.
func TestOthersUseTheGPU(t *testing.T) {
	var g neighbours
	at := time.Unix(1e9, 0)
	uses := func(mine, idle, busy float64, sampled time.Time) audit.Books {
		var b audit.Books
		for name, sm := range map[string]float64{"mine": mine, "idle": idle, "busy": busy} {
			p := collectors.DeviceProcess{UUID: "GPU-0", SM: sm, Sampled: sampled}
			p.Process.Workload = &host.Workload{Key: name}
			b.DeviceProcesses = append(b.DeviceProcesses, p)
		}
		return b
	}
	g.look(uses(10, 0, 3, at))
	g.look(uses(12, 0, 5, at.Add(5*time.Second)))
	for workload, want := range map[string]float64{"mine": 0.4, "busy": 0.4, "idle": 0.8} {
		if part := g.others("GPU-0", workload); math.Abs(part-want) > 1e-9 {
			t.Errorf("beside %s the others use %g, want %g", workload, part, want)
		}
	}
	g.look(uses(12, 0, 5, at.Add(5*time.Second))) // no new samples
	if part := g.others("GPU-0", "mine"); part != 0.4 {
		t.Errorf("between two samples the others use %g, want 0.4", part)
	}
	if part := g.others("GPU-1", "mine"); part != 0 {
		t.Errorf("others use %g of another GPU", part)
	}
	var unknown neighbours
	if unknown.look(uses(0, 0, 0, time.Time{})); unknown.others("GPU-0", "mine") != 1 {
		t.Error("without samples the others may use all")
	}
}
