package agent

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all" // registers the collectors
	"gpusteward/exporter"
	"gpusteward/health/incident"
	"gpusteward/internal/config"
)

// An observedHost is one host: its collectors, its judgement, and the server of
// both.
type observedHost struct {
	*hostConfig
	host      *collectors.Host
	judgement *judgement
	server    *exporter.Server
	web       atomic.Pointer[webConfig]
}

// A webConfig is the part of the configuration that the page, the metrics and the
// orders depend on.
type webConfig struct {
	grafana   string
	fleet     exporter.FleetOptions
	processes bool              // they may be listed
	minimal   bool              // /metrics has the minimal profile
	external  string            // URL of this agent
	labels    map[string]string // of all alerts
}

// configure applies another configuration to the page.
func (n *observedHost) configure(c config.Config) {
	n.web.Store(&webConfig{grafana: c.Web.GrafanaURL, fleet: fleetOptions(c.Web.Fleet), processes: c.Collectors.PerProcess,
		minimal: c.Metrics.Profile == config.MinimalProfile, external: c.Web.External(n.name), labels: c.Health.Labels})
}

// fleetOptions returns what the page of all hosts asks.
func fleetOptions(c config.Fleet) exporter.FleetOptions {
	o := exporter.FleetOptions{URL: c.URL, Selector: c.Selector, Timeout: exporter.FleetTime}
	if c.HTTPConfig != "" { // read each time, since a token in it may change
		o.Client = func() (*http.Client, error) { return config.HTTPClient(c.HTTPConfig) }
	}
	return o
}

// newObservedHost returns the observed host of m. It serves the samples of more
// as well.
func newObservedHost(f flags, c config.Config, m *hostConfig, more func() []collectors.Sample) (*observedHost, error) {
	n := &observedHost{hostConfig: m}
	c = m.labelled(c)
	n.configure(c)
	m.options.Events = func(e collectors.Event) { n.judgement.monitor.Event(e) }
	n.host = collectors.NewHost(m.options)
	var err error
	if n.judgement, err = newJudgement(f, c, m, n.host); err != nil {
		return nil, err
	}
	n.server, err = exporter.New(exporter.Options{
		Samples:  func() []collectors.Sample { return slices.Concat(n.host.Samples(), more(), n.judgement.samples()) },
		Events:   http.HandlerFunc(n.judgement.events),
		Health:   n.judgement.monitor,
		Faults:   n.judgement.faults,
		Ready:    n.host.Ready,
		Hostname: m.name,
		Interval: n.host.Interval,
		Processes: func() ([]collectors.DeviceProcess, bool) {
			return n.host.DeviceProcesses(), !m.real || n.web.Load().processes
		},
		Parent:  n.host.Parent,
		XID:     func(code int) string { return incident.XIDs()[code].Description },
		Grafana: func() string { return n.web.Load().grafana },
		Fleet:   func() exporter.FleetOptions { return n.web.Load().fleet },
		Minimal: func() bool { return n.web.Load().minimal },
		Note:    m.note,
		PProf:   f.pprof,
		Log:     m.options.Log,
	})
	if err != nil {
		return nil, err
	}
	n.server.Prepare()
	return n, nil
}

// run reads, judges and keeps the responses up to date until ctx ends.
func (n *observedHost) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.host.Run(ctx) })
	group.Go(func() error { return n.options.Processes.Run(ctx) })
	group.Go(func() error { return n.allocations.Run(ctx) })
	group.Go(func() error { return n.judgement.run(ctx) })
	group.Go(func() error { return n.server.Run(ctx) })
	return group.Wait()
}
