package exporter

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
)

// A gate is a Samples that waits until it is opened, and counts its calls.
type gate struct {
	opened chan struct{}
	calls  int // to be read while no scrape runs
	mu     sync.Mutex
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

func (g *gate) samples() []collectors.Sample {
	g.mu.Lock()
	g.calls++
	g.mu.Unlock()
	<-g.opened
	return twoGPUs
}

func TestScrapeTimeoutHeader(t *testing.T) {
	s := server(t, nil)
	for _, bad := range []string{"soon", "0", "-1", "NaN", "Inf", "-Inf", "1e9", "3600", "10s", " "} {
		w := request(s, http.MethodGet, "/metrics", scrapeTimeout, bad)
		wantAnswer(t, w, http.StatusBadRequest, "is not a number of seconds")
		wantAnswer(t, w, http.StatusBadRequest, scrapeTimeout)
	}
	for _, good := range []string{"10", "0.5", "1e1", "3599"} {
		wantAnswer(t, request(s, http.MethodGet, "/metrics", scrapeTimeout, good), http.StatusOK, "nvgpu_up")
	}
	wantAnswer(t, request(s, http.MethodGet, "/metrics"), http.StatusOK, "nvgpu_up")
}

func TestSlowScrapeIsAnsweredBeforeItsTimeout(t *testing.T) {
	for header, within := range map[string]time.Duration{"2": 2 * time.Second, "0.1": 100 * time.Millisecond,
		"": defaultPatience + 1} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate()
			s := server(t, func(o *Options) { o.Samples = g.samples })
			began := time.Now()
			var headers []string
			if header != "" {
				headers = []string{scrapeTimeout, header}
			}
			w := request(s, http.MethodGet, "/metrics", headers...)
			took := time.Since(began)
			fixture.If(t, took >= within || took < within*9/10, "timeout %q: answered after %v", header, took)
			wantAnswer(t, w, http.StatusServiceUnavailable, "took longer")
			fixture.Equal(t, strings.Contains(w.Body.String(), "nvgpu_"), false, "half an answer was sent")
			close(g.opened)
			synctest.Wait()
			wantAnswer(t, request(s, http.MethodGet, "/metrics"), http.StatusOK, "nvgpu_up")
		})
	}
}

func TestScrapesShareOneGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const scrapers = 300
		g := newGate()
		s := server(t, func(o *Options) { o.Samples = g.samples })
		answers := make(chan *httptest.ResponseRecorder, scrapers)
		for i := range scrapers {
			go func() { answers <- request(s, http.MethodGet, fmt.Sprint("/metrics?x=", i)) }()
		}
		synctest.Wait()
		wantAnswer(t, request(s, http.MethodGet, "/-/healthy"), http.StatusOK, "") // probes are not scrapes
		close(g.opened)
		for range scrapers {
			wantAnswer(t, <-answers, http.StatusOK, `nvgpu_up{gpu="0",uuid="GPU-a"} 1`)
		}
		fixture.Equal(t, g.calls, 1, "%d scrapes at a time gathered … times", scrapers)
		wantAnswer(t, request(s, http.MethodGet, "/metrics"), http.StatusOK, "nvgpu_up")
		fixture.Equal(t, g.calls, 2, "a scrape after them made it … gathers")
	})
}

// A scrape after a change gets the new value, even if many others arrive at the same time.
func TestBusyScrapingDoesNotFreezeValues(t *testing.T) {
	var value atomic.Int64
	s := server(t, func(o *Options) {
		o.Samples = func() []collectors.Sample {
			return []collectors.Sample{{Metric: collectors.Devices, Value: float64(value.Load())}}
		}
	})
	deadline := time.Now().Add(30 * time.Second)
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for ctx.Err() == nil {
				request(s, http.MethodGet, "/metrics")
			}
		})
	}
	for n := 1; n <= 50; n++ {
		value.Store(int64(n))
		request(s, http.MethodGet, "/metrics") // may join a gather that began before
		got := parse(t, request(s, http.MethodGet, "/metrics").Body)["nvgpu_devices"].GetMetric()[0].GetGauge().GetValue()
		if got != float64(n) || time.Now().After(deadline) {
			t.Errorf("the value is %v, two scrapes later %v", n, got)
			break
		}
	}
	stop()
	others.Wait()
}

func TestDisconnectIsNotLogged(t *testing.T) {
	for name, leave := range map[string]func(cancel func()){
		"disconnects":    func(cancel func()) { cancel() },
		"loses patience": func(func()) { time.Sleep(defaultPatience) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, log := newGate(), new(fixture.Transcript)
				s := server(t, func(o *Options) { o.Samples, o.Log = g.samples, slog.New(slog.NewTextHandler(log, nil)) })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
				ended := make(chan struct{})
				go func() { defer close(ended); s.ServeHTTP(httptest.NewRecorder(), r) }()
				synctest.Wait()
				leave(cancel)
				<-ended
				close(g.opened) // only now the server writes
				synctest.Wait()
				fixture.Equal(t, log.String(), "", "logged")
				fixture.Equal(t, g.calls, 1, "gathered … times: the client left before it was served")
			})
		})
	}
}

// newKept returns a server that caches responses for a second, and the number in its samples.
func newKept(t *testing.T) (s *Server, set func(v float64), gathered *int) {
	value, count := 0.0, 0
	var mu sync.Mutex
	s = server(t, func(o *Options) {
		o.Interval = func() time.Duration { return time.Second }
		o.Samples = func() []collectors.Sample {
			mu.Lock()
			defer mu.Unlock()
			count++
			return []collectors.Sample{{Metric: collectors.Devices, Value: value}}
		}
	})
	return s, func(v float64) { mu.Lock(); value = v; mu.Unlock() }, &count
}

func TestScrapesWithinAnIntervalShareAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set, gathered := newKept(t)
		fixture.Running(t, s.scrapes.run)
		for range 100 {
			wantAnswer(t, request(s, http.MethodGet, "/metrics"), http.StatusOK, "nvgpu_devices 0\n")
		}
		fixture.Equal(t, *gathered, 1, "100 scrapes within an interval gathered … times")
		time.Sleep(200 * time.Millisecond) // to run shortly after each renewal
		for interval := 1.0; interval < 20; interval++ {
			set(interval)
			time.Sleep(time.Second)
			synctest.Wait()
			rendered := *gathered
			wantAnswer(t, request(s, http.MethodGet, "/metrics"), http.StatusOK,
				fmt.Sprintf("nvgpu_devices %v\n", interval))
			fixture.Equal(t, *gathered, rendered, "a scrape behind read %v rendered its own response", interval)
		}
	})
}

func TestUnreadResponsesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set, gathered := newKept(t)
		fixture.Running(t, s.scrapes.run)
		request(s, http.MethodGet, "/metrics")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if *gathered > 2 || len(s.scrapes.cache) > 0 {
			t.Errorf("one scrape made %d gathers in 30 s, and %d responses are cached", *gathered, len(s.scrapes.cache))
		}
		set(7)
		wantAnswer(t, request(s, http.MethodGet, "/metrics"), http.StatusOK, "nvgpu_devices 7\n")
	})
}

func TestResponsesAreDistinctAndBounded(t *testing.T) {
	s, _, gathered := newKept(t)
	text, om := request(s, http.MethodGet, "/metrics"), request(s, http.MethodGet, "/metrics", "Accept",
		"application/openmetrics-text;version=1.0.0")
	fixture.If(t, text.Body.String() == om.Body.String(), "OpenMetrics was answered with the response for text")
	fixture.If(t, strings.Contains(request(s, http.MethodGet, "/metrics?name[]=nvgpu_up").Body.String(),
		"nvgpu_devices"), "a scrape of chosen names was answered with the whole response")
	*gathered = 0
	for i := range 100 {
		w := request(s, http.MethodGet, fmt.Sprint("/metrics?x=", i), "Accept", fmt.Sprint("text/plain;q=0.", i),
			"Accept-Encoding", fmt.Sprint("x", i))
		wantAnswer(t, w, http.StatusOK, "nvgpu_devices")
		wantAnswer(t, request(s, http.MethodGet, fmt.Sprint("/metrics?name[]=", i)), http.StatusOK, "")
	}
	if n := len(s.scrapes.cache); *gathered != 0 || n != 2 {
		t.Errorf("100 ways to ask for the same, and 100 choices, made %d gathers and %d responses, want none and 2",
			*gathered, n)
	}
}

// newHost returns a host that reads the scenario and is ready.
func newHost(tb testing.TB, name string) *collectors.Host {
	tb.Helper()
	text := fixture.Value(scenarios.Source(name))(tb)
	var s scenarios.Scenario
	fixture.Must(tb, yaml.Unmarshal(text, &s))
	nv := fixture.Value(sim.New(s, sim.Options{Seed: 1}))(tb)
	h := collectors.NewHost(collectors.Options{NVML: nv, Config: collectors.DefaultConfig(),
		Processes: nv.Table(slog.New(slog.DiscardHandler)), Log: slog.New(slog.DiscardHandler)})
	fixture.Running(tb, func(ctx context.Context) error { h.Run(ctx); return nil })
	tb.Cleanup(nv.Close)
	fixture.Eventually(tb, "the host is ready", func() bool { return h.Ready() == nil })
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
