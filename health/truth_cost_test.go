package health

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// BenchmarkEval measures one judgement over eight GPUs by all checks, including
// the snapshot: with sums of their links, with each of them, and with 64
// additional workloads on each GPU. The goal is 2 ms.
func BenchmarkEval(b *testing.B) {
	for _, of := range []struct {
		name string
		host *healthyHost
	}{{"sums", busyHost(false)}, {"links", busyHost(true)}, {"workloads", crowdedHost()}} {
		b.Run(of.name, func(b *testing.B) {
			h := of.host
			// in the order of collectors.Host
			slices.SortStableFunc(h.series, func(a, b series) int { return cmp.Compare(a.labels[0], b.labels[0]) })
			e := NewEngine(Checks(), h.now())
			for range 100 {
				samples, events := h.step()
				e.Eval(derived.NewSnapshot(samples), events, h.now())
			}
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				samples, events := h.step()
				b.StartTimer()
				e.Eval(derived.NewSnapshot(samples), events, h.now())
			}
		})
	}
}

// crowdedHost returns a host with 64 workloads and 18 links on each GPU.
func crowdedHost() *healthyHost {
	h := busyHost(true)
	h.jobs, h.era, h.quotas = nil, 1<<40, true
	for _, g := range h.gpus {
		for range 64 {
			j := h.job(batch, "slurm", g)
			j.part = 1.0 / 64
		}
	}
	return h
}

// busyHost returns an H100 host with all the series that are judged.
func busyHost(perLink bool) *healthyHost {
	for seed := uint64(1); ; seed++ {
		h := newHealthyHost(seed)
		if h.model.text["model"] == "h100" && h.perLink == perLink && !h.mig {
			return h
		}
	}
}

// BenchmarkHealthyHost measures the simulation of ten seconds of a host.
func BenchmarkHealthyHost(b *testing.B) {
	h := busyHost(false)
	for b.Loop() {
		h.step()
	}
}

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestAbsentCountersAreForgotten simulates a host whose workloads come and
// go for months, each with its counters.
func TestAbsentCountersAreForgotten(t *testing.T) {
	t.Parallel()
	g := Increase(workloads.QoSViolations, 5*time.Minute, "by", "tenant")
	now := time.Unix(1, 0)
	e := NewEngine([]*Check{{ID: "missed", Levels: []Level{{Severity: incident.Warning, When: g.Above(0)}}}}, now)
	for i := range 600 {
		now = now.Add(time.Minute)
		e.Eval(derived.NewSnapshot([]collectors.Sample{{Metric: workloads.QoSViolations, Labels: []string{"0", "GPU-0",
			strconv.Itoa(i), "compute"}, Value: 7}}), nil, now)
	}
	if n := len(e.memory.counted[g].last); n > 130 {
		t.Errorf("%d counters are remembered of 600 that were there for a minute each, in ten hours", n)
	}
}
