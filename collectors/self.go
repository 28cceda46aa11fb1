package collectors

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// State of GPUs, whether or not they answer, and of the agent itself.
var (
	Up              = Gauge("nvgpu_up", "Whether the GPU answers: 0 if it is lost or gone, or its driver calls hang.")
	Devices         = HostGauge("nvgpu_devices", "GPUs listed by the driver.")
	DevicesExpected = HostGauge("nvgpu_devices_expected",
		"GPUs that the host should have: the configured number, or those it has ever had.")

	CollectSuccess = HostGauge("gpusteward_collect_success",
		"Whether the collector's last pass is fresh and had no failure, on every GPU.", "collector")
	Unsupported = Gauge("gpusteward_unsupported",
		"1 for a metric family that the GPU or its driver does not have.", "feature")
	SnapshotAge = Gauge("gpusteward_snapshot_age_seconds", "Seconds since the GPU's reader last completed a turn.")
	WorkerStuck = Gauge("gpusteward_worker_stuck",
		"1 for a GPU that does not answer, with the reason: the driver call that hangs, the driver's return "+
			"code, or not_listed.", "reason")
	CollectDuration = HostGauge("gpusteward_collect_duration_seconds",
		"Seconds the collector's last pass took, on the slowest GPU.", "collector")
	CollectErrors = HostCounter("gpusteward_collect_errors_total",
		"Passes with a failed driver call, by the first failure.", "collector", "return")
	NVMLCalls = HostCounter("gpusteward_nvml_calls_total",
		"Calls to the driver's management library, by return code.", "call", "return")
	MissingSymbol = HostGauge("gpusteward_missing_symbol",
		"1 for a function missing from the installed driver library.", "symbol")
	NVMLGeneration = HostGauge("gpusteward_nvml_generation", "Times the driver was opened.")
	DriverUp       = HostGauge("gpusteward_driver_up", "Whether the driver is open.")
	DriverMismatch = HostGauge("gpusteward_driver_mismatch",
		"1 while the driver library's version differs from the kernel module's, so that every call fails; "+
			"with both versions, if known.", "module", "library")
	Drained       = HostGauge("gpusteward_drained", "1 while the driver is released on request (gpusteward drain).")
	SeriesDropped = HostCounter("gpusteward_series_dropped_total",
		"Samples dropped because a collector had too many.", "family")
)

// standing adds what is known about a GPU whether or not it answers.
func (g gpuStatus) standing(out []Sample, s *state, now time.Time, fast time.Duration) []Sample {
	up := g.snap != nil && g.snap.up(now, fast)
	labels := []string{strconv.Itoa(g.Index), g.UUID}
	out = append(out, Sample{Metric: Up, Labels: labels, Value: Bool(up)})
	if g.snap != nil {
		out = append(out, Sample{Metric: SnapshotAge, Labels: labels, Value: now.Sub(g.snap.at).Seconds()})
	}
	if !up {
		out = append(out, Sample{Metric: WorkerStuck, Labels: append(labels[:2:2], g.reason(s, now)), Value: 1})
	}
	return out
}

// lacks adds the metric families that a GPU does not have. Families that the
// host lacks belong to no GPU.
func (p *pass) lacks(out []Sample, id gpu.ID) []Sample {
	if !p.collector.ofGPU() {
		return out
	}
	for i, m := range p.unsupported {
		has := func(s Sample) bool { return s.Metric == m }
		if !slices.Contains(p.unsupported[:i], m) && !slices.ContainsFunc(p.samples, has) {
			out = append(out, Sample{Metric: Unsupported, Labels: []string{strconv.Itoa(id.Index), id.UUID, m.Name}, Value: 1})
		}
	}
	return out
}

// standings holds the state of each collector over all GPUs.
type standings map[*Collector]*struct {
	took   time.Duration // the maximum
	failed bool
}

func (s standings) add(p *pass, ok bool) {
	e := s[p.collector]
	if e == nil {
		e = new(struct {
			took   time.Duration
			failed bool
		})
		s[p.collector] = e
	}
	e.took = max(e.took, p.took)
	e.failed = e.failed || !ok
}

// self adds the agent's own metrics.
func (h *Host) self(out []Sample, s *state, collected standings) []Sample {
	add := func(m *Metric, v float64, labels ...string) {
		out = append(out, Sample{Metric: m, Labels: labels, Value: v})
	}
	drained := errors.Is(s.err, ErrDrained)
	if !drained {
		add(Devices, float64(max(0, len(s.listed())-1)))
	}
	add(DevicesExpected, float64(h.expected()))
	add(Drained, Bool(drained))
	add(DriverUp, Bool(h.Driver() == nil))
	if gpu.ReturnOf(s.err) == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
		add(DriverMismatch, 1, h.Kernel.Driver().Version, h.Kernel.Library())
	} else {
		add(DriverMismatch, 0, "", "")
	}
	add(NVMLGeneration, float64(s.generation))
	for c, e := range collected {
		add(CollectDuration, e.took.Seconds(), c.Name)
		add(CollectSuccess, Bool(!e.failed), c.Name)
	}
	h.calls.Each(func(call string, ret nvml.Return, n uint64) { add(NVMLCalls, float64(n), call, gpu.ReturnName(ret)) })
	h.calls.Missing(func(symbol string) { add(MissingSymbol, 1, symbol) })
	h.mu.Lock()
	defer h.mu.Unlock()
	for e, n := range h.errors {
		add(CollectErrors, float64(n), e.collector, gpu.ReturnName(e.result))
	}
	for family, n := range h.dropped {
		add(SeriesDropped, float64(n), family)
	}
	return out
}

type collectError struct {
	collector string
	result    nvml.Return
}

// account updates the agent's own metrics after a pass.
func (h *Host) account(p *pass, dropped map[*Metric]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.failure != nvml.SUCCESS {
		h.errors[collectError{p.collector.Name, p.failure}]++
	}
	for m, n := range dropped {
		h.dropped[m.Name] += uint64(n)
	}
}

// listed returns the readers of the GPUs that the driver lists.
func (s *state) listed() []*reader {
	if errors.Is(s.err, errReopening) {
		return s.before
	}
	return s.readers
}

// expected returns the number of GPUs that there should be.
func (h *Host) expected() int {
	if n := h.config.Load().Devices; n != 0 {
		return n
	}
	return len(h.inventory.all())
}

// Metrics of the configuration; internal/config sets their values.
var (
	ConfigReloadSuccess = HostGauge("gpusteward_config_reload_success",
		"Whether the last configuration read was valid; an invalid one never replaces a valid one.")
	ConfigReloadTime = HostGauge("gpusteward_config_last_reload_success_timestamp_seconds",
		"Unix time at which a valid configuration was last read.")
)

// selfMetrics are the metrics that no collector puts.
var selfMetrics = []*Metric{
	Up, Devices, DevicesExpected, CollectSuccess, Unsupported, SnapshotAge, WorkerStuck, CollectDuration,
	CollectErrors, NVMLCalls, MissingSymbol, NVMLGeneration, DriverUp, DriverMismatch, Drained, SeriesDropped,
	ConfigReloadSuccess, ConfigReloadTime,
}
