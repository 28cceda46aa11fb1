package exporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
)

// Options are what a Server needs of the rest of the agent.
type Options struct {
	Samples func() []collectors.Sample // the current samples; must not block
	Events  http.Handler               // serves /api/v1/events; nil: there is no such endpoint
	Health  http.Handler               // serves /api/v1/health; nil: there is no such endpoint
	Faults  func() []Fault             // the findings of health, the worst first; nil: there is no health
	Ready   func() error               // nil, or why the agent is not ready
	// the processes on the GPUs, and whether they may be listed; nil: they may not
	Processes func() (all []collectors.DeviceProcess, may bool)
	Parent    func(uuid string) string // of a MIG device: its GPU; nil: there are none
	XID       func(code int) string    // what an XID means, "" if unknown; nil: all are
	Grafana   func() string            // URL of a Grafana with the dashboards; nil or empty: there is none
	Note      string                   // shown on the page and in the state
	Hostname  string                   // empty: the kernel's host name
	Fleet     func() FleetOptions      // the Prometheus of /fleet; nil, or without a URL: there is none
	Minimal   func() bool              // whether /metrics has the minimal profile alone; nil: it has all
	Interval  func() time.Duration     // how often the samples change; 0: every scrape reads them
	PProf     bool                     // serve /debug/pprof
	Log       *slog.Logger
}

// A Server answers HTTP.
type Server struct {
	options Options
	handler http.Handler
	self    *timed
	scrapes *scrapes
	live    *live
	pace    pace
	boards  boards
}

// New returns a server. An error comes from the page's template.
func New(o Options) (*Server, error) {
	if o.Hostname == "" {
		o.Hostname, _ = os.Hostname() // unknown is empty
	}
	s := &Server{options: o, self: newTimed()}
	s.live = &live{state: s.now}
	if o.Interval == nil {
		o.Interval = func() time.Duration { return 0 }
	}
	if o.XID == nil {
		o.XID = func(int) string { return "" }
	}
	if o.Parent == nil {
		o.Parent = func(uuid string) string { return uuid }
	}
	if o.Grafana == nil {
		o.Grafana = func() string { return "" }
	}
	if o.Fleet == nil {
		o.Fleet = func() (none FleetOptions) { return none }
	}
	s.options = o
	s.scrapes = &scrapes{render: s.cacheable(), interval: o.Interval, cache: map[string]*cachedResponse{}}
	page, err := newLivePage(o)
	if err != nil {
		return nil, fmt.Errorf("make the page: %w", err)
	}
	mux := http.NewServeMux()
	if o.Events != nil { // not cached: it may stream, and its queries differ
		mux.Handle("GET /api/v1/events", new(viewers).bound(o.Events))
	}
	if o.Health != nil {
		mux.Handle("GET /api/v1/health", o.Health)
	}
	mux.Handle("GET /api/v1/processes", compressed(s.named(s.processes)))
	mux.Handle("GET /api/v1/history/day", compressed(s.named(s.live.history.day)))
	mux.Handle("GET /{$}", page)
	mux.Handle("GET /fleet", &FleetPage{Home: true, From: func() string { return o.Fleet().name() },
		Ask: func(ctx context.Context) (Fleet, error) { return o.Fleet().ask(ctx) }})
	mux.Handle("GET /page/", page)
	mux.Handle("GET /api/v1/live", new(viewers).bound(s.live))
	mux.Handle("GET /metrics", s.scrapes)
	mux.Handle("GET /metrics/dcgm", s.scrapes)
	mux.Handle("GET /api/v1/state", s.scrapes)
	mux.Handle("GET /api/v1/history", s.scrapes)
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "gpusteward is healthy.")
	})
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

// cacheable renders the responses that are cached for one interval.
func (s *Server) cacheable() http.Handler {
	asDCGM := func() []collectors.Sample { return dcgm(s.options.Samples(), s.options.Hostname, s.options.XID) }
	mux := http.NewServeMux()
	for path, v := range map[string]*gatherer{
		"/metrics":      {samples: s.options.Samples, self: s.self, minimal: s.options.Minimal},
		"/metrics/dcgm": {samples: asDCGM, sparse: true},
	} {
		mux.Handle(path, s.families(v, formats[path]))
	}
	mux.HandleFunc("/api/v1/state", s.state)
	mux.Handle("/api/v1/history", &s.live.history)
	return mux
}

// families renders the families of v, in one of the formats.
func (s *Server) families(v *gatherer, formats []expfmt.Format) http.Handler {
	return promhttp.HandlerForTransactional(v, promhttp.HandlerOpts{
		ErrorLog:                            slog.NewLogLogger(s.options.Log.Handler(), slog.LevelError),
		ErrorHandling:                       promhttp.ContinueOnError,
		Registry:                            s.self.registry,
		AcceptedFormats:                     formats,
		EnableOpenMetricsTextCreatedSamples: true,
		DisableCompression:                  true, // scrapes compresses at a third of promhttp's cost
	})
}

// Forget drops the cached responses, so that the next scrape gets current
// samples. It is safe for concurrent use.
func (s *Server) Forget() { s.scrapes.forget() }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if err := s.options.Ready(); err != nil {
		http.Error(w, "gpusteward is not ready: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "gpusteward is ready.")
}

// Prepare gathers the agent's own metrics for the first scrape. Call it before
// Listen.
func (s *Server) Prepare() { s.self.gather() }

// Run keeps the responses up to date until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.self.run(ctx) })
	group.Go(func() error { return s.scrapes.run(ctx) })
	group.Go(func() error { return s.live.run(ctx) })
	return group.Wait()
}

// Listen listens as the flags say (addresses, TLS, authentication, socket
// activation), and serves h until ctx ends.
func Listen(ctx context.Context, h http.Handler, flags *web.FlagConfig, log *slog.Logger) error {
	server := newHTTPServer(h, log)
	server.BaseContext = func(l net.Listener) context.Context {
		log.Info("the live page is served", "url", pageURL(l))
		return context.Background()
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := web.ListenAndServe(server, flags, log)
		switch {
		case errors.Is(err, http.ErrServerClosed):
			return nil
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("%w: is another gpusteward running? --web.listen-address takes another address", err)
		case err != nil:
			return fmt.Errorf("listen as --web.listen-address says: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if err := server.Shutdown(last); err != nil {
			return server.Close()
		}
		return nil
	})
	return group.Wait()
}

// pageURL returns the URL at which a browser on this host finds a listener. A
// listener that is not plain TCP is one of TLS.
func pageURL(l net.Listener) string {
	scheme, address := "https", l.Addr().String()
	if _, plain := l.(*net.TCPListener); plain {
		scheme = "http"
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok && a.IP.IsUnspecified() {
		address = fmt.Sprintf("localhost:%d", a.Port)
	}
	return scheme + "://" + address
}

// newHTTPServer returns the server for unknown clients. No client can hold it
// up by not writing, not reading, or opening connections.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	open := &connections{open: map[net.Conn]connection{}}
	return &http.Server{Handler: h, ConnState: open.changed, ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout: sendTimeout, IdleTimeout: 5 * time.Minute,
		MaxHeaderBytes: 16 << 10, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
}
