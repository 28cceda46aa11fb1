package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/common/version"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/exporter"
	"gpusteward/health"
	"gpusteward/health/journal"
)

// A role is what a process does of what the agent can.
type role string

// The roles.
const (
	roleAll     role = "all"
	roleObserve role = "observe"
	roleEnforce role = "enforce"
)

// brokers returns what a process of this role brokers of c.
func (r role) brokers(c EnforcerConfig) EnforcerConfig {
	if r == roleObserve {
		c.Enabled = false
	}
	return c
}

// serve runs until ctx ends.
func (r role) serve(ctx context.Context, f flags, log *slog.Logger) error {
	if r != roleEnforce {
		return serve(ctx, f, log)
	}
	if f.demoHostsGiven {
		return errors.New("--demo.hosts: simulated hosts are observed only; not with --role=enforce")
	}
	if err := confine(enforcing); err != nil {
		return fmt.Errorf("--role=enforce: %w", err)
	}
	return enforce(ctx, f, log)
}

// needed are the collectors that the enforcer needs.
var needed = []string{"processes", "memory", "memory_bandwidth", "pcie_link", "workload_info", "events"}

// only returns c with all other collectors off.
func only(c collectors.Config, names []string) collectors.Config {
	c.Disable, c.Broker, c.KernelLog, c.HAMi = nil, "", "", ""
	for _, one := range collectors.All() {
		if !slices.Contains(names, one.Name) && !one.OptIn {
			c.Disable = append(c.Disable, one.Name)
		}
	}
	c.Enable = nil
	return c
}

// enforce is the agent that only enforces: the broker, who sees to it that its
// word counts, and of the collectors what these need. It serves no metrics:
// whoever observes asks the broker's socket for them.
func enforce(ctx context.Context, f flags, log *slog.Logger) error {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	conf := &configFile{path: f.config, optional: !f.configGiven, log: log}
	c, err := conf.load()
	switch {
	case err != nil:
		return misconfigured{fmt.Errorf("--config.file: %w", err)}
	case !c.Enforcer.Enabled:
		return misconfigured{fmt.Errorf("--role=enforce: enforcer.enabled is false in %s: there is nothing to enforce", conf.origin())}
	}
	f.stateDir = filepath.Join(f.stateDir, "enforcer") // beside what who observes keeps
	m, err := newMachine(f, c, log)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	var blame blame
	m.options.Events, m.options.Allocations = blame.event, nil
	m.options.Config = only(m.options.Config, needed)
	boot, _ := m.options.Kernel.BootID() // unknown is empty
	dir := f.stateDir
	if !m.real {
		dir = ""
	}
	book, _, err := journal.Open(journal.Options{Dir: dir, Node: m.name, Boot: boot, Log: log})
	if err != nil {
		return fmt.Errorf("--state.dir: %w", err)
	}
	host := collectors.NewHost(m.options)
	enforcement, err := newEnforcement(f, c.Enforcer, m, host,
		func(uuid string, within time.Duration) bool { return blame.hardware(host.Parent(uuid), within) }, book.Append)
	if err != nil {
		return fmt.Errorf("enforcer: %w", err)
	}
	log.Info("gpusteward enforces", "version", version.Version, "config", conf.origin())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return host.Run(ctx) })
	group.Go(func() error { return m.options.Processes.Run(ctx) })
	group.Go(func() error { return book.Run(ctx) })
	group.Go(func() error { return enforcement.run(ctx) })
	group.Go(func() error { return supervise(ctx, host, conf.fast, log) })
	group.Go(func() error {
		return conf.reloadOn(ctx, reload, func(c Config) {
			host.Configure(only(m.config(c), needed))
			enforcement.configure(c.Enforcer)
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info("gpusteward ends")
	return nil
}

// isObserver reports whether a user is whom the agent observes as: the
// directory of the control socket is that user's, in one that is root's.
func (f flags) isObserver(uid uint32) bool {
	info, err := os.Lstat(filepath.Join(f.runtimeDir, filepath.Dir(exporter.ControlSocket)))
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && owner.Uid == uid
}

// blame remembers which GPUs had faults of their own, by the driver's events.
type blame struct {
	mu   sync.Mutex
	last map[string]time.Time // by UUID
}

func (b *blame) event(e collectors.Event) {
	s, ok := health.Seen(e)
	if !ok || s.What == "xid" && !health.XIDs()[s.Code].Hardware() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.last = map[string]time.Time{}
	}
	b.last[e.GPU.UUID] = e.Time
}

func (b *blame) hardware(uuid string, within time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.last[uuid]
	return ok && time.Since(at) <= within
}
