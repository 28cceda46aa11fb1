package health

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestMetricsOfHealth checks the metrics of the judgement on a host with two
// GPUs, by the recent values of their margins; -1 stands for none.
func TestMetricsOfHealth(t *testing.T) {
	const cool, suspect, warm, hot, unread = 50, 8, -1, -20, 1000
	checks := func() []*Check {
		shadow := *hotCheck
		shadow.ID, shadow.Alert, shadow.Shadow = "shadow", "Shadow", true
		early := &Check{ID: "early", Alert: "Early",
			Levels: []Level{{Severity: incident.Info, When: Value(device.TemperatureMargin).
				Below(10), For: of(3, 3)}}}
		return []*Check{hotCheck, &shadow, early}
	}
	for name, c := range map[string]struct {
		margins          [2]float64
		down             bool // the first does not answer
		enabled          []string
		status           [2]float64
		node             float64
		failing, unknown [2]float64 // of the check hot; number of checks
		firing           map[string]float64
	}{
		"both are cool":        {margins: [2]float64{cool, cool}, firing: map[string]float64{"Shadow warning": -1}},
		"the first is suspect": {margins: [2]float64{suspect, cool}, firing: map[string]float64{"Early info": 1}},
		"the first is warm": {margins: [2]float64{warm, cool}, status: [2]float64{1, 0}, node: 1,
			failing: [2]float64{1, 0}, firing: map[string]float64{"Hot warning": 1, "Early info": 1, "Shadow warning": -1}},
		"both are warm": {margins: [2]float64{warm, warm}, status: [2]float64{1, 1}, node: 1,
			failing: [2]float64{1, 1}, firing: map[string]float64{"Hot warning": 2, "Early info": 2}},
		"the second is hot": {margins: [2]float64{warm, hot}, status: [2]float64{1, 2}, node: 2,
			failing: [2]float64{1, 1}, firing: map[string]float64{"Hot warning": 2, "Hot critical": 1, "Early info": 2}},
		"it alerts, asked to": {margins: [2]float64{warm, hot}, enabled: []string{"shadow"}, status: [2]float64{1, 2},
			node: 2, failing: [2]float64{1, 1}, firing: map[string]float64{"Hot warning": 2, "Hot critical": 1,
				"Early info": 2, "Shadow warning": 2, "Shadow critical": 1}},
		"nothing is read": {margins: [2]float64{unread, cool}, status: [2]float64{-1, 0}, unknown: [2]float64{3, 0}},
		"cool, and down":  {margins: [2]float64{cool, cool}, down: true, status: [2]float64{-1, 0}, node: -1},
		"suspect, and down": {margins: [2]float64{suspect, cool}, down: true, status: [2]float64{-1, 0}, node: -1,
			firing: map[string]float64{"Early info": 1}},
		"warm, and down": {margins: [2]float64{warm, cool}, down: true, status: [2]float64{1, 0}, node: 1,
			failing: [2]float64{1, 0}, firing: map[string]float64{"Hot warning": 1, "Early info": 1}},
	} {
		w := newWorld(t, checks()...)
		w.engine.Tune(Settings{EnableAlerts: c.enabled}, w.engine.memory.now)
		look := func(margins [2]float64) *derived.Snapshot {
			samples := []collectors.Sample{on("0", collectors.Up, collectors.Bool(!c.down)), on("1", collectors.Up, 1)}
			for i, margin := range margins {
				if margin != unread {
					samples = append(samples, on(strconv.Itoa(i), device.TemperatureMargin, margin))
				}
			}
			_, s := w.look(step, nil, samples...)
			return s
		}
		var s *derived.Snapshot
		for _, margins := range [][2]float64{{cool, cool}, c.margins, c.margins, c.margins} {
			s = look(margins)
		}
		for i := range 2 {
			gpu := strconv.Itoa(i)
			if got := [...]float64{valueOf(s, Status, gpu), valueOf(s, CheckFailing, gpu, "hot"),
				valueOf(s, CheckUnknown, gpu)}; got != [...]float64{c.status[i], c.failing[i], c.unknown[i]} {
				t.Errorf("%s: GPU %d has status %g, fails %g, of %g is nothing known; want %g, %g, %g", name, i, got[0],
					got[1], got[2], c.status[i], c.failing[i], c.unknown[i])
			}
		}
		fixture.Equal(t, valueOf(s, NodeStatus, ""), c.node, "%s: the node has status", name)
		want := map[string]float64{"Hot warning": 0, "Hot critical": 0, "Early info": 0, "Shadow warning": -1,
			"Shadow critical": -1}
		for alert, n := range c.firing {
			want[alert] = n
		}
		got := map[string]float64{}
		for _, f := range s.Of(AlertFiring) {
			got[f.Labels[0]+" "+f.Labels[1]] += f.Value
		}
		for alert, n := range want {
			if v, known := got[alert]; known != (n >= 0) || known && v != n {
				t.Errorf("%s: %s fires %g times (%v), want %g", name, alert, v, known, n)
			}
		}
		if n := len(s.Of(AlertFiring)); n != len(slices.DeleteFunc(slices.Sorted(maps.Values(want)),
			func(v float64) bool { return v < 0 })) {
			t.Errorf("%s: %d series of alerts", name, n)
		}
	}
}

// TestNodesFaultFailsTheNode holds that a fault of the node fails it, and leaves its GPUs well.
func TestNodesFaultFailsTheNode(t *testing.T) {
	w := newWorld(t, hotCheck, &Check{ID: "mismatch", Levels: []Level{{Severity: incident.Critical,
		When: Value(collectors.DriverMismatch).Is(1)}}})
	for _, mismatch := range []float64{0, 1} {
		_, s := w.look(step, nil, on("0", collectors.Up, 1), hotAt(20),
			collectors.Sample{Metric: collectors.DriverMismatch, Labels: []string{"", ""}, Value: mismatch})
		got := [...]float64{valueOf(s, NodeStatus, ""), valueOf(s, Status, "0"), valueOf(s, CheckFailing, "", "mismatch")}
		if got != [...]float64{2 * mismatch, 0, mismatch} {
			t.Errorf("%g: the node has status %g, the GPU %g, and the check fails: %g", mismatch, got[0], got[1], got[2])
		}
	}
}

// TestWorkloadFaultDoesNotFailItsGPU holds that a fault of a workload fails its check and alerts,
// while the GPU and the node stay well, as in a verdict.
func TestWorkloadFaultDoesNotFailItsGPU(t *testing.T) {
	lags := &Check{ID: "lags", Alert: "Lags", Summary: "It lags.", Levels: []Level{{Severity: incident.Warning,
		When: Value(derived.WorkloadLag, "by", "workload").Above(.5)}}}
	w := newWorld(t, lags)
	_, s := w.look(step, nil, on("0", collectors.Up, 1), on("0", derived.WorkloadLag, .9, "job"))
	got := [...]float64{valueOf(s, Status, "0"), valueOf(s, NodeStatus, ""), valueOf(s, CheckFailing, "0", "lags")}
	if got != [...]float64{0, 0, 1} {
		t.Errorf("the GPU has status %g, the node %g, and the check fails: %g", got[0], got[1], got[2])
	}
}
