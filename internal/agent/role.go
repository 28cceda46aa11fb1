package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
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
	// Two threads of Go are plenty beside the host's real work, since driver calls
	// have their own. On a host with 200 cores the others would only sweep a small
	// heap in parallel.
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	debug.SetGCPercent(50)
	a, err := assembled(ctx, func() (a assembly, err error) {
		c, err := conf.Load()
		if err != nil {
			return a, misconfigured{fmt.Errorf("--config.file: %w", err)}
		}
		if a, err = r.assemble(f, conf, c); err == nil {
			log.Info(a.starts, append([]any{"version", version.Version, "config", conf.Origin()}, a.about...)...)
		}
		return a, err
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	if a.host != nil {
		a.tasks = append(a.tasks, func(ctx context.Context) error { return supervise(ctx, a.host, conf.Fast, log) })
	}
	if a.configure != nil {
		a.tasks = append(a.tasks, func(ctx context.Context) error { return conf.ReloadOn(ctx, reload, a.configure) })
	}
	return a.run(ctx, log)
}

// The end of the program. Nothing that a client, a disk, a reader of the log or an
// Alertmanager does delays it.
const (
	obey     = 1200 * time.Millisecond // for everything that runs
	lastWord = 100 * time.Millisecond  // for the last line of the log, after that
	returns  = 150 * time.Second       // for memory that the driver gives back: less than TimeoutStopSec of the broker's unit
)

// assembled returns what assemble does, unless ctx ends before: a disk may hang.
func assembled(ctx context.Context, assemble func() (assembly, error)) (a assembly, err error) {
	type result struct {
		assembly
		error
	}
	made := make(chan result, 1)
	go func() {
		a, err := assemble()
		made <- result{a, err}
	}()
	select {
	case m := <-made:
		return m.assembly, m.error
	case <-ctx.Done():
		return assembly{}, nil
	}
}

// run runs all tasks until ctx ends or one of them fails. It returns once they have ended, and
// otherwise after obey. While the driver gives memory back, that is returns: without it,
// programs that wait for it would not survive.
func (a assembly) run(ctx context.Context, log *slog.Logger) (err error) {
	group, all := errgroup.WithContext(ctx)
	for _, run := range a.tasks {
		group.Go(func() error { return run(all) })
	}
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	<-all.Done()
	says := func() { log.Info("gpusteward ends") }
	for late := time.NewTimer(obey); ; {
		select {
		case err = <-ended:
		case is := <-a.returning:
			late.Reset(map[bool]time.Duration{true: returns, false: obey}[is])
			continue
		case <-late.C:
			says = func() { log.Warn("gpusteward ends before everything in it has") }
			if ctx.Err() == nil {
				err = context.Cause(all)
			}
		}
		break
	}
	if err != nil {
		return err // which its caller logs
	}
	said := make(chan struct{})
	go func() { defer close(said); says() }()
	select {
	case <-said:
	case <-time.After(lastWord):
	}
	return nil
}

// prepare refuses flags that cannot work, and gives up privileges that the role
// does not need.
func (r role) prepare(f flags) error {
	if r == roleEnforce {
		if f.demoHostsGiven {
			return misconfigured{errors.New("--demo.hosts: simulated hosts cannot be combined with --role=enforce")}
		}
		if err := confine(enforcing); err != nil {
			return fmt.Errorf("--role=enforce: %w", err)
		}
		return nil
	}
	for _, address := range *f.web.WebListenAddresses {
		_, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil && !strings.HasPrefix(address, "vsock://") {
			return misconfigured{fmt.Errorf("--web.listen-address=%s: %w: write HOST:PORT or :PORT", address, err)}
		}
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
	returning <-chan bool         // tells at the end from when and until when the driver gives memory back; nil: it does not
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
