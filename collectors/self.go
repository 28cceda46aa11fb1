package collectors

import (
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// What the agent says of GPUs that may not answer, and of itself.
var (
	Up              = Gauge("nvgpu_up", "Whether the GPU answers: 0 when it is lost or its driver calls hang.")
	Devices         = HostGauge("nvgpu_devices", "GPUs that the driver lists.")
	DevicesExpected = HostGauge("nvgpu_devices_expected", "GPUs that the host should have: configured, or the most seen.")

	CollectSuccess  = HostGauge("gpusteward_collect_success", "Whether the collector's last pass is fresh and had no failure, on every GPU.", "collector")
	Unsupported     = Gauge("gpusteward_unsupported", "1 for a family that this GPU or its driver does not have.", "feature")
	SnapshotAge     = Gauge("gpusteward_snapshot_age_seconds", "Time since the GPU's reader last came round.")
	WorkerStuck     = Gauge("gpusteward_worker_stuck", "1 while the GPU's reader waits for a driver call that is overdue.", "reason")
	CollectDuration = HostGauge("gpusteward_collect_duration_seconds", "Duration of the collector's last pass, on the slowest GPU.", "collector")
	CollectErrors   = HostCounter("gpusteward_collect_errors_total", "Passes in which a driver call failed, by the first failure.", "collector", "return")
	NVMLCalls       = HostCounter("gpusteward_nvml_calls_total", "Calls of the driver's management library, by return code.", "call", "return")
	MissingSymbol   = HostGauge("gpusteward_missing_symbol", "1 for a function that the installed driver library lacks.", "symbol")
	NVMLGeneration  = HostGauge("gpusteward_nvml_generation", "How many times the driver has been opened.")
	DriverUp        = HostGauge("gpusteward_driver_up", "Whether the driver is open.")
	SeriesDropped   = HostCounter("gpusteward_series_dropped_total", "Samples left out because a collector had too many.", "family")
)

// standing adds what is known of a GPU whether or not it answers.
func (r *reader) standing(out []Sample, s *snapshot, now time.Time, fast time.Duration) []Sample {
	id := gpu.ID{Index: r.index}
	up := false
	var age time.Duration
	if d := r.device.Load(); d != nil {
		id = d.ID
	}
	if s != nil {
		id, up, age = s.id, s.up(now, fast), now.Sub(s.at)
	}
	labels := []string{strconv.Itoa(r.index), id.UUID}
	out = append(out, Sample{Up, labels, Bool(up)})
	if s != nil {
		out = append(out, Sample{SnapshotAge, labels, age.Seconds()})
	}
	if up {
		return out
	}
	reason := ""
	if s != nil && s.lost != nvml.SUCCESS {
		reason = gpu.ReturnName(s.lost)
	} else if d := r.device.Load(); d != nil {
		if b := d.Busy(); b != nil && now.Sub(b.Since) > 2*fast {
			reason = b.Call
		}
	}
	if reason != "" {
		out = append(out, Sample{WorkerStuck, append(labels[:2:2], reason), 1})
	}
	return out
}

// lacks adds the families that a GPU does not have. (What the host lacks is
// no GPU's.)
func (p *pass) lacks(out []Sample, id gpu.ID) []Sample {
	if p.collector.Host != nil {
		return out
	}
	for i, m := range p.unsupported {
		has := func(s Sample) bool { return s.Metric == m }
		if !slices.Contains(p.unsupported[:i], m) && !slices.ContainsFunc(p.samples, has) {
			out = append(out, Sample{Unsupported, []string{strconv.Itoa(id.Index), id.UUID, m.Name}, 1})
		}
	}
	return out
}

// standings is how each collector fares, over all GPUs.
type standings map[*Collector]*struct {
	took   time.Duration // the longest
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

// self adds the agent's own books.
func (h *Host) self(out []Sample, s *state, collected standings) []Sample {
	add := func(m *Metric, v float64, labels ...string) { out = append(out, Sample{m, labels, v}) }
	have, expected := h.devices(s)
	add(Devices, float64(have))
	add(DevicesExpected, float64(expected))
	add(DriverUp, Bool(s.err == nil))
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

// Of the configuration; main keeps their values.
var (
	ConfigReloadSuccess = HostGauge("gpusteward_config_reload_success", "Whether the last configuration read was good; a bad one never replaces a good one.")
	ConfigReloadTime    = HostGauge("gpusteward_config_last_reload_success_timestamp_seconds", "When a good configuration was last read, as a Unix time.")
)

// selfMetrics are those that no collector puts.
var selfMetrics = []*Metric{
	Up, Devices, DevicesExpected, CollectSuccess, Unsupported, SnapshotAge, WorkerStuck, CollectDuration, CollectErrors, NVMLCalls,
	MissingSymbol, NVMLGeneration, DriverUp, SeriesDropped, ConfigReloadSuccess, ConfigReloadTime,
}
