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
	m, err := newMachine(f, c, log)
	if err != nil {
		return err
	}
	// Beside somebody else's work: two threads of Go are plenty (driver calls
	// have their own), and on a host with 200 cores the rest would only sweep
	// a small heap in parallel.
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	var host *collectors.Host
	judgement, err := newJudgement(f, c.Health, m, func() []collectors.Sample { return host.Samples() }, func(uuid string) { host.Forget(uuid) })
	if err != nil {
		return err
	}
	m.options.Events = judgement.monitor.Event
	host = collectors.NewHost(m.options)
	samples := func() []collectors.Sample { return slices.Concat(host.Samples(), conf.samples(), judgement.samples()) }
	server, err := exporter.New(exporter.Options{
		Samples:    samples,
		Events:     judgement.journal,
		Health:     judgement.monitor,
		Faults:     judgement.faults,
		Ready:      host.Ready,
		Hostname:   hostName(),
		Beat:       host.Beat,
		Note:       m.note,
		MaxScrapes: int(c.Web.MaxScrapes),
		PProf:      f.pprof,
		Log:        log,
	})
	if err != nil {
		return err
	}
	enforcement, err := newEnforcement(f, f.role.brokers(c.Enforcer), m, host, judgement.monitor.Hardware, judgement.journal.Append)
	if err != nil {
		return fmt.Errorf("enforcer: %w", err)
	}
	control := &exporter.Control{
		Dir:     f.runtimeDir,
		Actions: map[string]exporter.Action{"drain": {Do: silent(host.Drain)}, "resume": {Do: silent(host.Resume)}, "ack": judgement.ack()},
		Done:    server.Forget,
		Reads:   server,
		Log:     log,
	}
	log.Info("gpusteward starts", "version", version.Version, "config", conf.origin())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return host.Run(ctx) })
	group.Go(func() error { return m.options.Processes.Run(ctx) })
	group.Go(func() error { return m.allocations.Run(ctx) })
	group.Go(func() error { return judgement.run(ctx) })
	group.Go(func() error { return enforcement.run(ctx) })
	group.Go(func() error { return server.Run(ctx, f.web) })
	group.Go(func() error { return control.Run(ctx) })
	group.Go(func() error { return supervise(ctx, host, conf.fast, log) })
	group.Go(func() error {
		return conf.reloadOn(ctx, reload, func(c Config) {
			host.Configure(m.config(c))
			judgement.configure(c.Health)
			enforcement.configure(c.Enforcer)
			server.Configure(int(c.Web.MaxScrapes))
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
