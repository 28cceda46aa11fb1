package health

import (
	"testing"

	"gpusteward/health/derived"
)

// crowded is a host with 64 workloads and 18 links on each GPU.
var crowded = worldRow{"style": "crowded", "boards": "h100-each", "work": "64xqueue:8", "habits": "tenants=0"}

// BenchmarkEval measures one judgement over eight GPUs by all checks, including the snapshot: with sums of their links,
// with each of them, and with 64 workloads on each GPU. The goal is 2 ms.
func BenchmarkEval(b *testing.B) {
	for _, style := range []worldRow{{"style": "sums", "boards": "h100", "work": "dense:8"},
		{"style": "links", "boards": "h100-each", "work": "dense:8"}, crowded} {
		b.Run(style["style"], func(b *testing.B) {
			s := newSite(style, 1)
			e := NewEngine(Checks(), s.now())
			for range 100 {
				e.Eval(derived.NewSnapshot(s.pass()), nil, s.now())
			}
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				samples := s.pass()
				b.StartTimer()
				e.Eval(derived.NewSnapshot(samples), nil, s.now())
			}
		})
	}
}
