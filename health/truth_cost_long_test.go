//go:build long

package health

import (
	"runtime"
	"slices"
	"testing"

	"gpusteward/health/derived"
)

// TestMemoryOfWindows limits an engine's memory after a day to 8 MiB: eight
// GPUs with 64 workloads and 18 links each.
func TestMemoryOfWindows(t *testing.T) {
	h := crowdedHost()
	before := heap()
	e := NewEngine(Checks(), h.now())
	for range stepsDay {
		samples, events := h.step()
		e.Eval(derived.NewSnapshot(slices.Clone(samples)), events, h.now())
	}
	grown := heap() - before
	const most = 8 << 20
	t.Logf("the heap grew by %.1f MiB, windows say %.1f MiB", float64(grown)/(1<<20), float64(e.metrics.Size())/(1<<20))
	if grown > most || e.metrics.Size() > most {
		t.Errorf("the engine holds %d bytes, its windows say %d: more than %d", grown, e.metrics.Size(), most)
	}
	runtime.KeepAlive(e)
	runtime.KeepAlive(h)
}
