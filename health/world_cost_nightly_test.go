//go:build nightly

package health

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"gpusteward/health/derived"
)

// TestMemoryOfWindows limits an engine's memory after a day on a crowded host to 8 MiB.
func TestMemoryOfWindows(t *testing.T) {
	s := newSite(crowded, 1)
	before := heap()
	e := NewEngine(Checks(), s.now())
	for end := s.clock + 24*time.Hour; s.clock < end; {
		e.Eval(derived.NewSnapshot(slices.Clone(s.pass())), nil, s.now())
	}
	grown := heap() - before
	const most = 8 << 20
	t.Logf("the heap grew by %.1f MiB, windows say %.1f MiB", float64(grown)/(1<<20), float64(e.metrics.Size())/(1<<20))
	if grown > most || e.metrics.Size() > most {
		t.Errorf("the engine holds %d bytes, its windows say %d: more than %d", grown, e.metrics.Size(), most)
	}
	runtime.KeepAlive(e)
	runtime.KeepAlive(s)
}

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
