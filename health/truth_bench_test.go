package health

import (
	"runtime"
	"slices"
	"testing"
)

// BenchmarkEval is the cost of one judgement over eight GPUs by all checks,
// the snapshot's included. The goal is 2 ms.
func BenchmarkEval(b *testing.B) {
	for name, perLink := range map[string]bool{"sums": false, "links": true} {
		b.Run(name, func(b *testing.B) {
			h := busyHost(perLink)
			e := NewEngine(Checks(), h.now())
			for range stepsHour {
				samples, events := h.step()
				e.Eval(NewSnapshot(samples), events, h.now())
			}
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				samples, events := h.step()
				b.StartTimer()
				e.Eval(NewSnapshot(samples), events, h.now())
			}
		})
	}
}

// busyHost returns an H100 host that shows all that there is to judge.
func busyHost(perLink bool) *healthyHost {
	for seed := uint64(1); ; seed++ {
		h := newHealthyHost(seed)
		if h.model.text["model"] == "h100" && h.perLink == perLink && !h.mig {
			return h
		}
	}
}

// BenchmarkHealthyHost is the cost of making up ten seconds of a host.
func BenchmarkHealthyHost(b *testing.B) {
	h := busyHost(false)
	for b.Loop() {
		h.step()
	}
}

// TestMemoryOfWindows holds what an engine remembers after a day to 8 MiB:
// eight GPUs with 64 workloads and 18 links each.
func TestMemoryOfWindows(t *testing.T) {
	h := busyHost(true)
	h.jobs, h.era = nil, 1<<40
	for _, g := range h.gpus {
		for range 64 {
			j := h.job(batch, "slurm", g)
			j.part = 1.0 / 64
		}
	}
	before := heap()
	e := NewEngine(Checks(), h.now())
	for range stepsDay {
		samples, events := h.step()
		e.Eval(NewSnapshot(slices.Clone(samples)), events, h.now())
	}
	grown := heap() - before
	const most = 8 << 20
	t.Logf("the heap grew by %.1f MiB, windows say %.1f MiB", float64(grown)/(1<<20), float64(e.derivers.Size())/(1<<20))
	if grown > most || e.derivers.Size() > most {
		t.Errorf("the engine holds %d bytes, its windows say %d: more than %d", grown, e.derivers.Size(), most)
	}
	runtime.KeepAlive(e)
	runtime.KeepAlive(h)
}

// heap returns the bytes that are in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
