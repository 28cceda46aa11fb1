package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/exporter"
)

// serve runs the agent until ctx ends.
func serve(ctx context.Context, f flags, log *slog.Logger) error {
	reload := make(chan os.Signal, 1) // from here on SIGHUP no longer ends the process
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	if err := web.Validate(*f.web.WebConfigFile); err != nil {
		return misconfigured{fmt.Errorf("--web.config.file=%s: %w", *f.web.WebConfigFile, err)}
	}
	conf := &configFile{path: f.config, optional: !f.configGiven, log: log}
	c, err := conf.load()
	if err != nil {
		return misconfigured{fmt.Errorf("--config.file: %w", err)}
	}
	// Beside somebody else's work: two threads of Go are plenty (driver calls
	// have their own), and on a host with 200 cores the rest would only sweep
	// a small heap in parallel.
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	if f.demoHostsGiven {
		return serveFleet(ctx, f, conf, c)
	}
	m, err := newMachine(f, c, log)
	if err != nil {
		return err
	}
	n, err := newNode(f, c, m, conf.samples)
	if err != nil {
		return err
	}
	host, judgement := n.host, n.judgement
	enforcement, err := newEnforcement(f, f.role.brokers(c.Enforcer), m, host, judgement.monitor.Hardware, judgement.journal.Append)
	if err != nil {
		return fmt.Errorf("enforcer: %w", err)
	}
	control := &exporter.Control{
		Dir:     f.runtimeDir,
		Actions: map[string]exporter.Action{"drain": {Do: silent(host.Drain)}, "resume": {Do: silent(host.Resume)}, "ack": judgement.ack()},
		Done:    n.server.Forget,
		Reads:   n.server,
		Log:     log,
	}
	log.Info("gpusteward starts", "version", version.Version, "config", conf.origin())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.run(ctx) })
	group.Go(func() error { return enforcement.run(ctx) })
	group.Go(func() error { return exporter.Listen(ctx, n.server, f.web, log) })
	group.Go(func() error { return control.Run(ctx) })
	group.Go(func() error { return supervise(ctx, host, conf.fast, log) })
	group.Go(func() error {
		return conf.reloadOn(ctx, reload, func(c Config) {
			host.Configure(m.config(c))
			judgement.configure(c.Health)
			enforcement.configure(c.Enforcer)
		})
	})
	if f.requireDriver {
		group.Go(func() error { return requireDriver(ctx, host) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info("gpusteward ends")
	return nil
}

// A node is one host: what is read of it, what is judged of that, and the
// pages that say so.
type node struct {
	*machine
	host      *collectors.Host
	judgement *judgement
	server    *exporter.Server
}

// newNode returns the node that m is. The samples of more are served beside
// what is read and judged.
func newNode(f flags, c Config, m *machine, more func() []collectors.Sample) (*node, error) {
	n := &node{machine: m}
	m.options.Events = func(e collectors.Event) { n.judgement.monitor.Event(e) }
	n.host = collectors.NewHost(m.options)
	var err error
	if n.judgement, err = newJudgement(f, c.Health, m, n.host); err != nil {
		return nil, err
	}
	n.server, err = exporter.New(exporter.Options{
		Samples:  func() []collectors.Sample { return slices.Concat(n.host.Samples(), more(), n.judgement.samples()) },
		Events:   n.judgement.journal,
		Health:   n.judgement.monitor,
		Faults:   n.judgement.faults,
		Ready:    n.host.Ready,
		Hostname: m.name,
		Beat:     n.host.Beat,
		Note:     m.note,
		PProf:    f.pprof,
		Log:      m.options.Log,
	})
	return n, err
}

// run reads, judges and keeps the pages up to date, until ctx ends.
func (n *node) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.host.Run(ctx) })
	group.Go(func() error { return n.options.Processes.Run(ctx) })
	group.Go(func() error { return n.allocations.Run(ctx) })
	group.Go(func() error { return n.judgement.run(ctx) })
	group.Go(func() error { return n.server.Run(ctx) })
	return group.Wait()
}

// silent returns act as an order that takes no arguments and says nothing.
func silent(act func(context.Context) error) func(context.Context, url.Values) (string, error) {
	return func(ctx context.Context, _ url.Values) (string, error) { return "", act(ctx) }
}

// requireDriver fails once it is plain that there is no driver.
func requireDriver(ctx context.Context, host *collectors.Host) error {
	for {
		switch err := host.Driver(); {
		case err == nil:
			return nil
		case !errors.Is(err, collectors.ErrOpening):
			return fmt.Errorf("--require-driver: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
