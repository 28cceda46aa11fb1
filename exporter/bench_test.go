package exporter

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
)

// newHost returns a host that reads the scenario and is ready.
func newHost(tb testing.TB, name string) *collectors.Host {
	tb.Helper()
	text := fixture.Value(scenarios.Source(name))(tb)
	var s scenarios.Scenario
	fixture.Must(tb, yaml.Unmarshal(text, &s))
	nv := fixture.Value(sim.New(s, sim.Options{Seed: 1}))(tb)
	h := collectors.NewHost(collectors.Options{NVML: nv, Config: collectors.DefaultConfig(),
		Processes: nv.Table(slog.New(slog.DiscardHandler)), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); h.Run(ctx) }()
	tb.Cleanup(func() { nv.Close(); cancel(); <-ended })
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(30 * time.Second); h.Ready() != nil; <-poll.C {
		if time.Now().After(deadline) {
			tb.Fatal(h.Ready())
		}
	}
	return h
}

// BenchmarkResponses measures the responses of eight GPUs, plain and compressed.
func BenchmarkResponses(b *testing.B) {
	h := newHost(b, "mixed")
	s := server(b, func(o *Options) { o.Samples, o.Ready = h.Samples, h.Ready })
	for _, path := range []string{"/metrics", "/metrics/dcgm", "/api/v1/state"} {
		for _, encoding := range []string{"identity", "gzip"} {
			b.Run(path[1:]+"/"+encoding, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					w := request(s, http.MethodGet, path, "Accept-Encoding", encoding)
					if w.Code != 200 {
						b.Fatal(w.Code, w.Body)
					}
					b.ReportMetric(float64(w.Body.Len()), "bytes")
				}
			})
		}
	}
}
