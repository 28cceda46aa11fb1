// Package exporter serves what was read over HTTP: to Prometheus at /metrics,
// to people at /, to probes at /-/healthy and /-/ready. It answers from
// memory; no request waits for a driver.
package exporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
)

// Options are what a Server needs of the rest of the agent.
type Options struct {
	Samples    func() []collectors.Sample // what is known now; must not block
	Ready      func() error               // nil, or why the agent is not ready
	Note       string                     // said on the landing page
	MaxScrapes int                        // scrapes served at a time; more get 503 at once
	PProf      bool                       // serve /debug/pprof
	Log        *slog.Logger
}

// A Server answers HTTP.
type Server struct {
	options Options
	handler http.Handler
	self    *timed
}

// New returns a server. The error is one of the landing page's template.
func New(o Options) (*Server, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(version.NewCollector("gpusteward"))
	s := &Server{options: o, self: newTimed()}
	metrics := promhttp.HandlerFor(&shared{Gatherer: view{o.Samples, registry, s.self}}, promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{o.Log},
		ErrorHandling:       promhttp.ContinueOnError,
		Registry:            registry,
		MaxRequestsInFlight: o.MaxScrapes,
		EnableOpenMetrics:   true,
		DisableCompression:  true, // of promhttp: three times as dear as compressed's
	})
	compressed, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzipLevel), gzhttp.MinSize(1024))
	if err != nil {
		return nil, fmt.Errorf("set up compression: %w", err)
	}
	landing, err := web.NewLandingPage(web.LandingConfig{
		Name:        "gpusteward",
		Description: "Reads this host's NVIDIA GPUs, judges them and keeps tenants to their share. " + o.Note,
		Profiling:   strconv.FormatBool(o.PProf),
		Links: []web.LandingLinks{
			{Address: "/metrics", Text: "Metrics", Description: "for Prometheus"},
			{Address: "/-/ready", Text: "Ready", Description: "200 once every GPU has been read, else why not"},
			{Address: "/-/healthy", Text: "Healthy", Description: "200 while the agent runs"},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the landing page: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", landing)
	mux.Handle("GET /metrics", withScrapeTimeout(compressed(metrics)))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "gpusteward is healthy.") })
	mux.HandleFunc("GET /-/ready", s.ready)
	if o.PProf {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	s.handler = mux
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if err := s.options.Ready(); err != nil {
		http.Error(w, "gpusteward is not ready: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "gpusteward is ready.")
}

// Run listens as flags say (addresses, TLS, authentication, socket
// activation) and serves until ctx ends.
func (s *Server) Run(ctx context.Context, flags *web.FlagConfig) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute,
		ErrorLog: slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug)}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.self.run(ctx) })
	group.Go(func() error {
		err := web.ListenAndServe(server, flags, s.options.Log)
		switch {
		case errors.Is(err, http.ErrServerClosed):
			return nil
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("%w: is another gpusteward running? --web.listen-address takes another address", err)
		}
		return err
	})
	group.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := server.Shutdown(last); err != nil {
			return server.Close()
		}
		return nil
	})
	return group.Wait()
}

// A scrapeLog takes promhttp's errors. A scraper that left before its answer
// was written is no error of ours, and would be a line for each family.
type scrapeLog struct{ log *slog.Logger }

// Println logs one error, given as a text and an error.
func (l scrapeLog) Println(v ...any) {
	level := slog.LevelError
	for _, x := range v {
		if err, ok := x.(error); ok && (errors.Is(err, context.Canceled) || errors.Is(err, http.ErrHandlerTimeout)) {
			level = slog.LevelDebug
		}
	}
	l.log.Log(context.Background(), level, "scrape failed", "err", strings.TrimSpace(fmt.Sprintln(v...)))
}

// gzipLevel costs a sixth of the usual 6 and leaves a seventh more; its
// tables are a quarter of level 3's.
const gzipLevel = 1

// Prometheus says in a header how long it waits; others wait this long.
const (
	scrapeTimeout   = "X-Prometheus-Scrape-Timeout-Seconds"
	defaultPatience = 10 * time.Second
)

// withScrapeTimeout gives up before the scraper does, so that the scraper
// gets an answer and not a cut connection. The answer is sent whole or not at
// all.
func withScrapeTimeout(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		patience := defaultPatience
		if v := r.Header.Get(scrapeTimeout); v != "" {
			seconds, err := strconv.ParseFloat(v, 64)
			if err != nil || !(seconds > 0 && seconds < 3600) {
				http.Error(w, fmt.Sprintf("%s: %q is not a number of seconds between 0 and 3600", scrapeTimeout, v), http.StatusBadRequest)
				return
			}
			patience = time.Duration(seconds * .95 * float64(time.Second))
		}
		http.TimeoutHandler(h, patience, "the scrape took longer than the scraper waits").ServeHTTP(w, r)
	})
}
