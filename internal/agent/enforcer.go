package agent

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"

	"gpusteward/collectors"
	"gpusteward/health"
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
	boot, _ := m.options.Kernel.BootID() // empty if unknown
	dir := f.stateDir
	if !m.real {
		dir = ""
	}
	book, _, err := journal.Open(journal.Options{Dir: dir, Node: m.name, Boot: boot, Log: conf.Log})
	if err != nil {
		return a, fmt.Errorf("--state.dir: %w", err)
	}
	host, monitor := m.enforced(dir, boot, c.Health.Settings())
	enforcement, err := newEnforcement(f, c.Enforcer, m, host, monitor, book.Append)
	if err != nil {
		return a, fmt.Errorf("enforcer: %w", err)
	}
	enforcement.further = func(next http.Handler) http.Handler { return f.spanReads(m.spans, next) }
	return assembly{
		starts:    "gpusteward enforces",
		tasks:     []task{host.Run, m.options.Processes.Run, monitor.Run, book.Run, enforcement.run},
		returning: enforcement.returning,
		host:      host,
		configure: func(c config.Config) {
			host.Configure(only(m.config(c)))
			monitor.Configure(c.Health.Settings())
			enforcement.configure(c.Enforcer)
			m.spans.Set(float64(c.Tracing.Sample))
		},
	}, nil
}

// enforced returns the host m as far as the enforcer needs it, and a monitor that
// knows which of its GPUs had faults of their own. A check that the operator disabled finds none, as in
// the other roles.
func (m *hostConfig) enforced(dir, boot string, s health.Settings) (h *collectors.Host, monitor *health.Monitor) {
	m.options.Events = func(e collectors.Event) { monitor.Event(e) }
	m.options.Allocations, m.options.KernelLog = nil, nil
	m.options.Config = only(m.options.Config)
	h = collectors.NewHost(m.options)
	judged := m.judged(h, dir, boot)
	judged.Checks = health.HardwareChecks()
	return h, health.NewMonitor(judged, s)
}

// needed are the collectors that the enforcer needs, beside those of
// health.HardwareChecks.
var needed = []string{"processes", "memory", "mig", "memory_bandwidth", "pcie_link", "workload_info", "events"}

// only returns c with all collectors off that the enforcer does not need.
func only(c collectors.Config) collectors.Config {
	c.Disable, c.Broker, c.HAMi = nil, "", ""
	var judged []*collectors.Metric
	for _, check := range health.HardwareChecks() {
		judged = append(judged, check.Metrics()...)
	}
	for _, one := range collectors.All() {
		if !one.OptIn && !slices.Contains(needed, one.Name) &&
			!slices.ContainsFunc(one.Metrics, func(m *collectors.Metric) bool { return slices.Contains(judged, m) }) {
			c.Disable = append(c.Disable, one.Name)
		}
	}
	c.Enable = nil
	return c
}
