package exporter

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// newHost returns a host that reads the scenario and is ready.
func newHost(tb testing.TB, name string) *collectors.Host {
	tb.Helper()
	text, err := scenarios.Source(name)
	if err != nil {
		tb.Fatal(err)
	}
	var s scenarios.Scenario
	if err := yaml.Unmarshal(text, &s); err != nil {
		tb.Fatal(err)
	}
	nv, err := sim.New(s, sim.Options{Seed: 1})
	if err != nil {
		tb.Fatal(err)
	}
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

func BenchmarkScrape(b *testing.B) {
	for _, name := range []string{"h100", "mixed", "sixteen"} {
		h := newHost(b, name)
		s, err := New(Options{Samples: h.Samples, Ready: h.Ready, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		for _, encoding := range []string{"identity", "gzip"} {
			b.Run(name+"/"+encoding, func(b *testing.B) {
				r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
				r.Header.Set("Accept-Encoding", encoding)
				b.ReportAllocs()
				for b.Loop() {
					w := httptest.NewRecorder()
					s.ServeHTTP(w, r)
					if w.Code != 200 {
						b.Fatal(w.Code, w.Body)
					}
					b.ReportMetric(float64(w.Body.Len()), "bytes")
				}
			})
		}
	}
}

// BenchmarkChosen measures a scrape of chosen names beside others.
func BenchmarkChosen(b *testing.B) {
	h := newHost(b, "mixed")
	s, err := New(Options{Samples: h.Samples, Ready: h.Ready, Interval: func() time.Duration { return time.Second },
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if w := request(s, http.MethodGet, fmt.Sprint("/metrics?name[]=nvgpu_up&name[]=n", n)); w.Code != 200 {
			b.Fatal(w.Code, w.Body)
		}
	}
}

// BenchmarkResponses measures an interval in which clients read the other
// responses of eight GPUs.
func BenchmarkResponses(b *testing.B) {
	h := newHost(b, "mixed")
	s, err := New(Options{Samples: h.Samples, Ready: h.Ready, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []string{"/metrics", "/metrics/dcgm", "/api/v1/state"} {
		b.Run(path[1:], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := request(s, http.MethodGet, path)
				if w.Code != 200 {
					b.Fatal(w.Code, w.Body)
				}
				b.ReportMetric(float64(w.Body.Len()), "bytes")
			}
		})
	}
}
