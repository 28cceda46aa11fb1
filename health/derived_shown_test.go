package health

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/internal/fixture"
)

// TestDerivedMetricsAreShown holds that an evaluation adds the results of each
// of its parts, both in a step of the engine and between two steps, when
// nothing is computed anew.
func TestDerivedMetricsAreShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, after := range []time.Duration{step, time.Second} {
		w.now = w.now.Add(after)
		s := derived.NewSnapshot([]collectors.Sample{on("0", collectors.Up, 1),
			on("0", device.ModeEnabled, 1, "ecc"),
			on("0", workloads.Processes, 0, "compute"), on("0", device.MemoryBytes, 1e9, "used"),
			on("0", device.MemoryBytes, 3e9, "free")})
		w.engine.Eval(s, nil, w.now)
		for _, c := range []struct {
			metric *collectors.Metric
			labels []string
			want   float64
		}{{OrphanMemory, []string{""}, 1e9}, {derived.MemoryPressure, nil, .25}, {Away, nil, 0},
			{ConfigDrift, []string{"ecc", "1", "1"}, 0}} {
			fixture.Equal(t, valueOf(s, c.metric, "0", c.labels...), c.want,
				"%v after the last evaluation: %s is", after, c.metric)
		}
	}
}
