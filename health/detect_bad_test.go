package health

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// quiet fails the test if there is a finding of at least a warning.
func quiet(t *testing.T, e *Engine, when string) {
	t.Helper()
	for _, f := range e.Findings() {
		fixture.If(t, f.Severity >= incident.Warning,
			"%s: %s of %s, %v: %s", when, f.Check, f.Entity, f.Severity, f.Message)
	}
}

// TestSettingTheClockIsNotAFault sets the clock of a healthy host, and then expects a fault to be found. Times here
// lack a monotonic reading, unlike the agent's, so this is the worst case.
func TestSettingTheClockIsNotAFault(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Minute, time.Hour, 30 * day, -time.Minute, -time.Hour, -30 * day} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			w := guard(newSite(worldRow{"style": "clock", "boards": "h100", "work": "8xqueue:1"}, 3))
			passes := func(when string) {
				for range 40 {
					w.pass()
				}
				quiet(t, w.monitor.engine, when)
			}
			passes("before")
			for range 2 {
				w.site.shift += by
				passes(fmt.Sprint("by now ", w.site.shift))
			}
			w.site.xid(119, w.site.boards[2], 4000, "python3")
			w.pass()
			found := false
			for _, f := range w.monitor.engine.Findings() {
				found = found || f.Check == "xid_fatal" && f.Severity == incident.Critical
			}
			fixture.If(t, !found, "an XID is not found any more")
		})
	}
}

// TestCounterResetsAreNotFaults restarts every checked counter at a lower
// value, as after a reset of the GPU or of the driver, and after an absence.
func TestCounterResetsAreNotFaults(t *testing.T) {
	t.Parallel()
	metrics := map[*collectors.Metric]bool{}
	for _, c := range Checks() {
		for _, m := range c.Metrics() {
			if m.Type == collectors.CounterType {
				metrics[m] = true
			}
		}
	}
	for _, m := range derived.Inputs() {
		if m.Type == collectors.CounterType {
			metrics[m] = true
		}
	}
	fixture.Need(t, len(metrics) < 8, false, "only %d counters are looked at", len(metrics))
	at := func(v float64) []collectors.Sample {
		all := []collectors.Sample{on("0", collectors.Up, 1), on("0", activity.Utilization, .9, "gpu"),
			on("0", links.PCIeGeneration, 5, "current"), on("0", links.PCIeWidth, 16, "current")}
		for m := range metrics {
			all = append(all, eachOf(m, v)...)
		}
		return all
	}
	for _, c := range []struct {
		before, after float64
		away          int // steps
	}{{1e6, 3, 0}, {1e6, 3, 6}, {1e6, 0, 2}, {7, 7, 20}} {
		w := newWorld(t, Checks()...)
		w.steps(40, at(c.before)...)
		w.steps(c.away, on("0", collectors.Up, 1))
		w.steps(80, at(c.after)...)
		quiet(t, w.engine, fmt.Sprintf("%+v", c))
	}
}

// eachOf returns a series of m for each label value that a check names.
func eachOf(m *collectors.Metric, v float64) (all []collectors.Sample) {
	values := map[string][]string{
		"gpu": {"0"}, "uuid": {"GPU-0"}, "severity": {"uncorrected", "corrected", "fatal", "nonfatal", "correctable"},
		"scope": {"volatile", "aggregate"},
		"type":  {"replay", "recovery", "correctable"}, "reason": {"hw_thermal", "sw_thermal", "hw_power_brake"},
		"direction": {"rx", "tx"},
	}
	all = []collectors.Sample{{Metric: m, Value: v}}
	for _, name := range m.Labels {
		var longer []collectors.Sample
		options := values[name]
		if options == nil {
			options = []string{"all"}
		}
		for _, s := range all {
			for _, value := range options {
				longer = append(longer, collectors.Sample{Metric: m,
					Labels: append(s.Labels[:len(s.Labels):len(s.Labels)], value), Value: v})
			}
		}
		all = longer
	}
	return all
}

// TestReadingsMayBeOlderThanAReset holds that a latched fault does not return with a reading older than the reset that
// ended it, and returns with a newer one.
func TestReadingsMayBeOlderThanAReset(t *testing.T) {
	t.Parallel()
	board := func(joules, exceeded float64) []collectors.Sample {
		return []collectors.Sample{on("0", collectors.Up, 1), on("0", device.Energy, joules, "gpu"),
			on("0", faults.SRAMThreshold, exceeded)}
	}
	for later, want := range map[float64]incident.State{0: incident.OK, 1: incident.Unhealthy} {
		w := newWorld(t, Checks()...)
		w.steps(2, board(100, 0)...)
		w.steps(1, board(110, 1)...)
		w.steps(60, board(120, 0)...)
		fixture.Need(t, w.state("sram_threshold"), incident.Unhealthy, "before the reset")
		w.steps(2, board(5, 1)...)
		fixture.Equal(t, w.state("sram_threshold"), incident.OK, "after the reset")
		w.steps(2, board(6, later)...)
		fixture.Equal(t, w.state("sram_threshold"), want, "%g later", later)
	}
}

// TestPowerCapIsNotAFault has a GPU that only the software power cap holds down, all the time: that is normal boost.
func TestPowerCapIsNotAFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Checks()...)
	for n := range 120 {
		w.steps(1, on("0", collectors.Up, 1), on("0", activity.Utilization, 1, "gpu"),
			on("0", device.Power, 700, "average", "gpu"), on("0", device.PowerLimit, 700, "enforced"),
			on("0", device.Clock, 1.4e9, "sm"), on("0", device.ClockMax, 1.98e9, "sm"),
			on("0", device.ClockEventActive, 1, "sw_power_cap"),
			on("0", device.ClockEventSeconds, float64(n)*step.Seconds(), "sw_power_cap"))
		for _, f := range w.engine.Findings() {
			fixture.Need(t, f.Severity, incident.None, "after %d steps: %s", n, f.Check)
		}
	}
}
