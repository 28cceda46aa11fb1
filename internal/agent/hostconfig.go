package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
	"gpusteward/internal/config"
	"gpusteward/internal/span"
)

// A hostConfig is what the parts of the agent need to know of their host, a
// real or a simulated one.
type hostConfig struct {
	name        string // of the host; empty if unknown
	instance    string // that Prometheus is expected to call it
	options     collectors.Options
	allocations *host.Allocations
	kernelLog   func(ctx context.Context, each func(host.Record)) error // follows the kernel's log; nil: there is none
	missed      func() uint64                                           // lost records of the kernel's log
	note        string                                                  // shown on the landing page
	// the broker's socket; empty: the enforcer is disabled
	broker string
	// this host's processes; nil if the host is simulated
	proc    host.Proc
	real    bool
	sharing int // simulated hosts in this process; 0: this is the only one
	spans   *span.Recorder
}

// hostName returns the host's name: NODE_NAME if it is set, because the kernel
// of a pod has the pod's name, and otherwise the kernel's host name. It is
// empty if unknown.
func hostName() string {
	name, _ := os.Hostname()
	return cmp.Or(os.Getenv("NODE_NAME"), name)
}

// newHostConfig returns the host that --demo describes, or this host.
func newHostConfig(f flags, c config.Config, log *slog.Logger) (*hostConfig, error) {
	m := bareHostConfig(f, c, hostName(), log)
	if m.real {
		return m, m.thisHost(f, c)
	}
	scenario, err := loadScenario(f.demo)
	if err != nil {
		return nil, err
	}
	log.Warn("these GPUs are simulated", "scenario", scenario.Name, "doc", scenario.Doc)
	return m, m.simulated(f, scenario, f.demoSeed)
}

// instance returns the address of the host's agent, which Prometheus has as the label
// instance. A pod has the node's name there, because its address changes.
func instance(f flags, name string) string {
	if f.web != nil && len(*f.web.WebListenAddresses) > 0 && os.Getenv("NODE_NAME") == "" {
		if _, port, err := net.SplitHostPort((*f.web.WebListenAddresses)[0]); err == nil {
			return net.JoinHostPort(name, port)
		}
	}
	return name
}

// labelled returns c with the labels that an alert of this host has, whether the agent
// sends it or Prometheus does.
func (m *hostConfig) labelled(c config.Config) config.Config {
	all := map[string]string{"job": job, "instance": m.instance}
	for name, value := range c.Health.Labels {
		all[name] = strings.ReplaceAll(value, config.HostPlaceholder, m.name)
	}
	c.Health.Labels = all
	return c
}

// bareHostConfig returns the part that real and simulated hosts have in common.
func bareHostConfig(f flags, c config.Config, name string, log *slog.Logger) *hostConfig {
	m := &hostConfig{name: name, instance: instance(f, name), real: !f.demoGiven, spans: span.New()}
	m.spans.Set(float64(c.Tracing.Sample))
	if c.Enforcer.Enabled {
		m.broker = c.Enforcer.BrokerSocket(f.runtimeDir)
	}
	m.options.Log = log
	m.options.Config = m.config(c)
	m.options.Allocations = func() host.Allocated { return m.allocations.Now() }
	return m
}

// config returns the collectors' part of c. Files of this host say nothing
// about simulated GPUs.
func (m *hostConfig) config(c config.Config) collectors.Config {
	part := c.Reads()
	part.Broker = m.broker // from the start, as the broker is
	if m.real {
		part.HAMi = c.Workloads.HAMi
	}
	return part
}

func (m *hostConfig) thisHost(f flags, c config.Config) error {
	proc, err := host.ProcFS(f.procfs)
	if err != nil {
		return fmt.Errorf("--path.procfs: %w", err)
	}
	log, w := m.options.Log, c.Workloads
	m.proc = proc
	if err := host.Hidden(f.procfs); err != nil {
		log.Warn("workloads of other users cannot be identified", "err", err)
	}
	m.options.NVML = nvml.New()
	m.options.Kernel = host.Kernel{Proc: os.DirFS(f.procfs), Sys: os.DirFS(f.sysfs), Dev: f.onHost("/dev")}
	m.options.StateDir = f.stateDir
	m.options.Renew = newRenewal(log).renew
	var names []host.Names
	for _, s := range []struct {
		path string
		of   func(path string) host.Names
	}{{w.Docker, host.Docker}, {w.Podman, host.Podman}, {w.PodLogs, host.KubeletLogs}} {
		if s.path != "" {
			names = append(names, s.of(s.path))
		}
	}
	cgroup := filepath.Join(f.sysfs, "fs/cgroup")
	m.options.Processes = host.NewTable(host.Options{Proc: proc, Names: names, Users: host.SystemUser,
		Jobs: filepath.Join(f.runtimeDir, "slurm"), Cgroup: cgroup, Log: log})
	kernel := host.NewKernelLog(f.onHost("/dev/kmsg"))
	m.kernelLog, m.missed, m.options.KernelLog = kernel.Follow, kernel.Lost, kernel.Follow
	m.allocations = host.NewAllocations(m.options.Processes, w.Kubelet, cgroup)
	return nil
}

// simulated makes m a scenario of collectors/gpu/sim.
func (m *hostConfig) simulated(f flags, scenario scenarios.Scenario, seed uint64) error {
	s, err := sim.New(scenario, sim.Options{Seed: seed})
	if err != nil {
		return misconfigured{fmt.Errorf("--demo=%s: %w", f.demo, err)}
	}
	m.options.NVML, m.options.Kernel = s, s.Kernel()
	m.options.Processes = s.Table(m.options.Log)
	m.kernelLog, m.missed = s.Follow, func() uint64 { return 0 }
	m.allocations = host.NewAllocations(m.options.Processes, "", "")
	if s.Tenants() && m.broker == "" { // the books of a running broker come first
		m.options.Books = s.Books
	}
	m.note = "This host is simulated (--demo=" + f.demo + ")."
	return nil
}

// loadScenario reads a scenario by its name or from a file.
func loadScenario(name string) (scenarios.Scenario, error) {
	var s scenarios.Scenario
	text, err := scenarios.Source(name)
	if err != nil {
		if !strings.ContainsAny(name, "./") {
			return s, misconfigured{fmt.Errorf("--demo: %w", err)}
		}
		if text, err = host.ReadFile(name, config.Longest); err != nil {
			return s, misconfigured{fmt.Errorf("--demo: %w", err)}
		}
	}
	if err := config.Decode(name, text, &s); err != nil {
		return s, misconfigured{err}
	}
	return s, nil
}

// probeDriver opens and closes the driver, to find whether a process that has
// not loaded the library yet can do so.
func probeDriver() error {
	lib, err := gpu.Open(nvml.New(), new(gpu.Calls), new(gpu.Caller))
	if err != nil {
		return err
	}
	return lib.Close()
}
