package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/internal/config"
)

// A role is what a process does of what the agent can.
type role string

// The roles.
const (
	roleAll     role = "all"
	roleObserve role = "observe"
	roleEnforce role = "enforce"
)

// serve runs until ctx ends.
func (r role) serve(ctx context.Context, f flags, log *slog.Logger) error {
	reload := make(chan os.Signal, 1) // from here on SIGHUP no longer ends the process
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	if err := r.prepare(f); err != nil {
		return err
	}
	conf := &config.File{Path: f.config, Optional: !f.configGiven, Log: log}
	c, err := conf.Load()
	if err != nil {
		return misconfigured{fmt.Errorf("--config.file: %w", err)}
	}
	// Beside somebody else's work: two threads of Go are plenty (driver calls
	// have their own), and on a host with 200 cores the rest would only sweep
	// a small heap in parallel.
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	a, err := r.assemble(f, conf, c)
	if err != nil {
		return err
	}
	log.Info(a.starts, append([]any{"version", version.Version, "config", conf.Origin()}, a.about...)...)
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range a.tasks {
		group.Go(func() error { return run(ctx) })
	}
	if a.host != nil {
		group.Go(func() error { return supervise(ctx, a.host, conf.Fast, log) })
	}
	if a.configure != nil {
		group.Go(func() error { return conf.ReloadOn(ctx, reload, a.configure) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info("gpusteward ends")
	return nil
}

// prepare refuses flags that cannot work, and gives up the rights that the role
// does not need.
func (r role) prepare(f flags) error {
	if r == roleEnforce {
		if f.demoHostsGiven {
			return errors.New("--demo.hosts: simulated hosts cannot be combined with --role=enforce")
		}
		if err := confine(enforcing); err != nil {
			return fmt.Errorf("--role=enforce: %w", err)
		}
		return nil
	}
	if err := web.Validate(*f.web.WebConfigFile); err != nil {
		return misconfigured{fmt.Errorf("--web.config.file=%s: %w", *f.web.WebConfigFile, err)}
	}
	return nil
}

// An assembly is all that a role runs.
type assembly struct {
	starts    string              // what the log says when it begins
	about     []any               // and of what
	tasks     []task              // run beside each other
	host      *collectors.Host    // whose progress systemd is told; nil: it is told nothing
	configure func(config.Config) // takes another configuration; nil: the file is not read again
}

// A task runs until its context ends; one that fails ends all.
type task func(context.Context) error

// assemble puts the role together.
func (r role) assemble(f flags, conf *config.File, c config.Config) (assembly, error) {
	switch {
	case f.demoHostsGiven:
		return assembleFleet(f, conf, c)
	case r == roleEnforce:
		return assembleEnforcer(f, conf, c)
	}
	return r.assembleObserver(f, conf, c)
}
