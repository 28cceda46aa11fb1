package enforcer

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/audit"
	"gpusteward/internal/fixture"
)

// TestOthersUseTheGPU compares the part of a GPU's time that the neighbours of a
// process use, by the driver's samples. Two of the three are of one workload, and
// one of no known workload.
func TestOthersUseTheGPU(t *testing.T) {
	t.Parallel()
	const minePID, idlePID, busyPID = 1, 2, 3
	var g neighbours
	at := time.Unix(1e9, 0)
	uses := func(mine, idle, busy float64, sampled time.Time) audit.Books {
		var b audit.Books
		for i, sm := range []float64{mine, idle, busy} {
			p := collectors.DeviceProcess{UUID: "GPU-0", SM: sm, Sampled: sampled}
			p.Process.PID = i + 1
			if p.Process.PID != idlePID {
				p.Process.Workload = &host.Workload{Key: "user:1000"}
			}
			b.DeviceProcesses = append(b.DeviceProcesses, p)
		}
		return b
	}
	g.look(uses(10, 0, 3, at))
	g.look(uses(12, 0, 5, at.Add(5*time.Second)))
	for pid, want := range map[int]float64{minePID: 0.4, busyPID: 0.4, idlePID: 0.8} {
		fixture.Near(t, g.others("GPU-0", pid), want, 1e-9, "beside process %d the others use", pid)
	}
	g.look(uses(12, 0, 5, at.Add(5*time.Second))) // no new samples
	fixture.Equal(t, g.others("GPU-0", minePID), 0.4, "between two samples the others use")
	fixture.Equal(t, g.others("GPU-1", minePID), 0, "others use … of another GPU")
	var unknown neighbours
	unknown.look(uses(0, 0, 0, time.Time{}))
	fixture.Equal(t, unknown.others("GPU-0", minePID), 1, "without samples the others may use all")
}
