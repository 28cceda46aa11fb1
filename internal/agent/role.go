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
	"time"

	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/internal/config"
)

// A role is the part of the agent's work that a process does.
type role string

// The roles.
const (
	roleAll     role = "all"
	roleObserve role = "observe"
	roleEnforce role = "enforce"
)

// processors is the number of threads that run Go. Those in the kernel or the driver come on top.
const processors = 2

// serve runs until ctx ends.
func (r role) serve(ctx context.Context, f flags, log *slog.Logger) error {
	reload := make(chan os.Signal, 1) // from here on SIGHUP no longer ends the process
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	if err := r.prepare(f); err != nil {
		return err
	}
	conf := &config.File{Root: f.root, Path: f.config, Optional: !f.configGiven, Log: log}
	c, err := conf.Load()
	if err != nil {
		return misconfigured{fmt.Errorf("--config.file: %w", err)}
	}
	// Two threads of Go are plenty beside the host's real work, since driver calls
	// have their own. On a host with 200 cores the others would only sweep a small
	// heap in parallel.
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	debug.SetGCPercent(50)
	a, err := r.assemble(f, conf, c)
	if err != nil {
		return err
	}
	log.Info(a.starts, append([]any{"version", version.Version, "config", conf.Origin()}, a.about...)...)
	if a.host != nil {
		a.tasks = append(a.tasks, func(ctx context.Context) error { return supervise(ctx, a.host, conf.Fast, log) })
	}
	if a.configure != nil {
		a.tasks = append(a.tasks, func(ctx context.Context) error { return conf.ReloadOn(ctx, reload, a.configure) })
	}
	if err := a.run(ctx, obey, log); err != nil {
		return err
	}
	log.Info("gpusteward ends")
	return nil
}

// obey is how long tasks may take to end. Nothing that a client, a disk or an
// Alertmanager does may keep the program from ending.
const obey = 1200 * time.Millisecond

// run runs all tasks until ctx ends or one of them fails, and then waits for
// them for so long. What the enforcer has stopped goes on first.
func (a assembly) run(ctx context.Context, patience time.Duration, log *slog.Logger) error {
	group, all := errgroup.WithContext(ctx)
	for _, run := range a.tasks {
		group.Go(func() error { return run(all) })
	}
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	<-all.Done()
	late := time.After(patience)
	if a.rested != nil {
		<-a.rested
	}
	select {
	case err := <-ended:
		return err
	case <-late:
	}
	log.Warn("gpusteward ends before everything in it has", "after", patience.String())
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(all)
}

// prepare refuses flags that cannot work, and gives up privileges that the role
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

// An assembly is everything that a role runs.
type assembly struct {
	starts    string              // first message of the log
	about     []any               // and its attributes
	tasks     []task              // run concurrently
	rested    <-chan struct{}     // closed once everything that was stopped goes on, after the end; nil: nothing was
	host      *collectors.Host    // reports progress to systemd; nil: none
	configure func(config.Config) // applies another configuration; nil: no reload
}

// A task runs until its context ends. If one fails, all end.
type task func(context.Context) error

// assemble returns the assembly of the role.
func (r role) assemble(f flags, conf *config.File, c config.Config) (assembly, error) {
	switch {
	case f.demoHostsGiven:
		return assembleFleet(f, conf, c)
	case r == roleEnforce:
		return assembleEnforcer(f, conf, c)
	}
	return r.assembleObserver(f, conf, c)
}
