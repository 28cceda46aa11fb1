package agent

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
	"gpusteward/health/journal"
	"gpusteward/internal/config"
)

// assembleEnforcer assembles the role enforce: the broker, the enforcer, and
// the collectors that these need. It serves no metrics: the observer asks the
// broker's socket for them.
func assembleEnforcer(f flags, conf *config.File, c config.Config) (a assembly, err error) {
	if !c.Enforcer.Enabled {
		return a, misconfigured{fmt.Errorf(
			"--role=enforce: enforcer.enabled is false in %s: there is nothing to enforce", conf.Origin())}
	}
	f.stateDir = filepath.Join(f.stateDir, "enforcer") // beside the observer's state
	m, err := newHostConfig(f, c, conf.Log)
	if err != nil {
		return a, err
	}
	var blame blame
	m.options.Events, m.options.Allocations, m.options.KernelLog = blame.event, nil, nil
	m.options.Config = only(m.options.Config, needed)
	boot, _ := m.options.Kernel.BootID() // empty if unknown
	dir := f.stateDir
	if !m.real {
		dir = ""
	}
	book, _, err := journal.Open(journal.Options{Dir: dir, Node: m.name, Boot: boot, Log: conf.Log})
	if err != nil {
		return a, fmt.Errorf("--state.dir: %w", err)
	}
	host := collectors.NewHost(m.options)
	enforcement, err := newEnforcement(f, c.Enforcer, m, host,
		func(uuid string, within time.Duration) bool { return blame.hardware(host.Parent(uuid), within) }, book.Append)
	if err != nil {
		return a, fmt.Errorf("enforcer: %w", err)
	}
	return assembly{
		starts: "gpusteward enforces",
		tasks:  []task{host.Run, m.options.Processes.Run, book.Run, enforcement.run},
		rested: enforcement.rested,
		host:   host,
		configure: func(c config.Config) {
			host.Configure(only(m.config(c), needed))
			enforcement.configure(c.Enforcer)
		},
	}, nil
}

// needed are the collectors that the enforcer needs.
var needed = []string{"processes", "memory", "mig", "memory_bandwidth", "pcie_link", "workload_info", "events"}

// only returns c with all collectors off that are not needed.
func only(c collectors.Config, names []string) collectors.Config {
	c.Disable, c.Broker, c.HAMi = nil, "", ""
	for _, one := range collectors.All() {
		if !slices.Contains(names, one.Name) && !one.OptIn {
			c.Disable = append(c.Disable, one.Name)
		}
	}
	c.Enable = nil
	return c
}

// blame remembers, from the driver's events, which GPUs had faults of their
// own.
type blame struct {
	mu   sync.Mutex
	last map[string]time.Time // by UUID
}

func (b *blame) event(e collectors.Event) {
	s, ok := incident.ParseEvent(e)
	if !ok || s.What == "xid" && !incident.XIDs()[s.Code].Hardware() {
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
