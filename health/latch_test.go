package health

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// lostBoth returns a world in which two GPUs were lost, one after the other, and answer again.
func lostBoth(t *testing.T) *world {
	w := newWorld(t, lostCheck)
	w.steps(1, energies(100, 100)...)
	w.steps(1, append(energies(110, 110), on("0", collectors.WorkerStuck, 1, "gpu_is_lost"))...)
	w.steps(1, append(energies(120, 120), on("1", collectors.WorkerStuck, 1, "gpu_is_lost"))...)
	w.steps(100, energies(130, 130)...)
	return w
}

func energies(first, second float64) []collectors.Sample {
	return []collectors.Sample{on("0", collectors.Up, 1), on("1", collectors.Up, 1),
		on("0", device.Energy, first, "gpu"), on("1", device.Energy, second, "gpu")}
}

const lostFirst, lostSecond = "lost gpu=0 failed", "lost gpu=1 failed"

// TestResetEndsLatchesOfOneGPU holds that a GPU's latch ends only with a reset of that GPU.
func TestResetEndsLatchesOfOneGPU(t *testing.T) {
	t.Parallel()
	action := func(gpu string, v float64) collectors.Sample { return on(gpu, faults.RecoveryAction, v) }
	for name, c := range map[string]struct {
		passes [][]collectors.Sample
		want   string
	}{
		"nothing":                 {[][]collectors.Sample{energies(130, 131)}, lostFirst + "; " + lostSecond},
		"the first GPU is reset":  {[][]collectors.Sample{energies(0, 140)}, lostSecond},
		"the second GPU is reset": {[][]collectors.Sample{energies(140, 0)}, lostFirst},
		"its memory's energy is new": {[][]collectors.Sample{append(energies(140, 140),
			on("0", device.Energy, 200, "memory")), append(energies(150, 150),
			on("0", device.Energy, 1, "memory"))}, lostFirst + "; " + lostSecond},
		"the driver is content": {[][]collectors.Sample{append(energies(140, 140), action("0", 0), action("1", 1)),
			append(energies(150, 150), action("0", 0), action("1", 0))},
			lostFirst},
		"the driver wants less": {[][]collectors.Sample{append(energies(140, 140), action("1", 2)),
			append(energies(150, 150), action("1", 1))}, lostFirst + "; " + lostSecond},
		"the driver wants something": {[][]collectors.Sample{append(energies(140, 140), action("1", 0)),
			append(energies(150, 150), action("1", 1)), energies(160, 160)},
			lostFirst + "; " + lostSecond},
		"the driver's word comes later": {[][]collectors.Sample{append(energies(140, 140), action("1", 1)),
			energies(150, 150), append(energies(160, 160), action("1", 0))}, lostFirst},
	} {
		w := lostBoth(t)
		fixture.Need(t, w.failing(), lostFirst+"; "+lostSecond, "%s, before", name)
		for _, samples := range c.passes {
			w.steps(1, samples...)
		}
		fixture.Equal(t, w.failing(), c.want, "%s", name)
	}
	w := lostBoth(t)
	w.step(step, []incident.Event{happened("load", incident.WhatDriverLoaded, 0, "", birth.Add(25*time.Second))},
		energies(140, 140)...)
	fixture.Equal(t, w.failing(), lostSecond, "the driver was loaded before the second was lost")
	none := happened("none", incident.WhatXID, incident.RecoveryXID, "1", w.now)
	none.Check, none.Action, none.Message = incident.RecoveryCheck, "NONE", "XID 154: to 0x0 (None)"
	changes := w.step(step, []incident.Event{none}, energies(150, 150)...)
	fixture.If(t, w.failing() != "" || len(changes) == 0 || !strings.Contains(changes[0].Message, "The driver asks for nothing any more: XID 154: to 0x0 (None)."),
		"the driver asks for nothing of the second any more: %q, %+v", w.failing(), changes)
}

// TestAckConcernsOneEntity names entities in every form, including absent ones.
func TestAckConcernsOneEntity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entity incident.Entity
		want   string
		fails  bool
	}{
		{incident.Entity{GPU: "0"}, lostSecond, false},
		{incident.Entity{GPU: "1"}, lostFirst, false},
		{incident.Entity{UUID: "GPU-1"}, lostFirst, false},
		{incident.Entity{GPU: "1", UUID: "GPU-1"}, lostFirst, false},
		{incident.Entity{GPU: "0", UUID: "GPU-1"}, lostFirst + "; " + lostSecond, true},
		{incident.Entity{GPU: "2"}, lostFirst + "; " + lostSecond, true},
		{incident.Entity{UUID: "GPU-2"}, lostFirst + "; " + lostSecond, true},
		{incident.Entity{GPU: "0", Link: "1"}, lostFirst + "; " + lostSecond, true},
		{incident.Entity{Device: "0"}, lostFirst + "; " + lostSecond, true},
	} {
		w := lostBoth(t)
		ev, err := w.engine.Ack("lost", c.entity, w.now)
		fixture.If(t, errors.Is(err, errNotLatched) != c.fails || (err != nil) != c.fails, "%+v: %v", c.entity, err)
		fixture.If(t, err == nil && (ev.Kind != incident.KindAck || ev.From != incident.Failed || ev.To != incident.OK ||
			ev.Latched || !ev.Time.Equal(w.now)), "%+v: %+v", c.entity, ev)
		fixture.Equal(t, w.failing(), c.want, "%+v", c.entity)
	}
}

// TestAckOfAnAbsentEntityNamesThePresent checks the answer to an operator who names an absent entity.
func TestAckOfAnAbsentEntityNamesThePresent(t *testing.T) {
	t.Parallel()
	none, both := newWorld(t, lostCheck), lostBoth(t)
	for _, c := range []struct {
		w           *world
		check, want string
	}{
		{none, "lost", "; this host has no fault to acknowledge"}, {none, "found", "; this host has no fault to acknowledge"},
		{both, "lost", "; acknowledge one of lost gpu=0, lost gpu=1"},
		{both, "found", "; acknowledge one of lost gpu=0, lost gpu=1"},
	} {
		_, err := c.w.engine.Ack(c.check, incident.Entity{GPU: "7"}, c.w.now)
		fixture.If(t, err == nil || !strings.HasSuffix(err.Error(), c.want), "%s: %v, want %q", c.check, err, c.want)
	}
}

// TestReadingsMayBeOlderThanAnAck holds that the last readings before an
// acknowledgement do not undo it, and that newer ones do.
func TestReadingsMayBeOlderThanAnAck(t *testing.T) {
	w := newWorld(t, lostCheck)
	w.steps(1, lost()...)
	fixture.Must(t, fixture.Error(w.engine.Ack("lost", incident.Entity{GPU: "0"}, w.now)))
	w.steps(1, lost()...)
	fixture.Equal(t, w.state("lost"), incident.OK, "10 s after the ack")
	w.steps(1, lost()...)
	fixture.Equal(t, w.state("lost"), incident.Failed, "20 s after the ack, and still lost")
}

var slowCheck = &Check{ID: "slow", Alert: "Slow", Summary: "It is slow.", Levels: []Level{
	{Severity: incident.Warning, When: Value(device.TemperatureMargin).AtMost(0, 3), For: of(50, 60)},
}}

// TestLeavingTakesAsManySamplesAsEntering holds that neither the hold-down
// alone, nor clear samples with others between them, end a state.
func TestLeavingTakesAsManySamplesAsEntering(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hotCheck)
	w.steps(3, hotAt(-1))
	w.steps(60, hotAt(2)) // between the thresholds, for longer than the hold-down
	w.steps(3, hotAt(20))
	w.steps(1, hotAt(2))
	w.steps(3, hotAt(20))
	fixture.Equal(t, w.state("hot"), incident.Recovering, "three clear samples in a row")
	w.steps(1, hotAt(20))
	fixture.Equal(t, w.state("hot"), incident.OK, "four")
	w = newWorld(t, slowCheck)
	w.steps(60, hotAt(-1))
	w.steps(59, hotAt(20))
	fixture.Equal(t, w.state("slow"), incident.Recovering, "59 clear samples of 60, and the hold-down is over")
	w.steps(1, hotAt(20))
	fixture.Equal(t, w.state("slow"), incident.OK, "60")
}

// TestWithoutDataAStateEndsWithTheHoldDown has a workload that ended while it failed, so that no clear samples follow.
func TestWithoutDataAStateEndsWithTheHoldDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slowCheck)
	w.steps(60, hotAt(-1))
	w.steps(2)
	fixture.Equal(t, w.state("slow"), incident.Degraded, "20 s without data")
	if w.steps(27); w.state("slow") != incident.Unknown || len(w.engine.Alerts(nil)) != 1 {
		t.Errorf("290 s without data: %v, %d alerts", w.state("slow"), len(w.engine.Alerts(nil)))
	}
	if w.steps(1); w.state("slow") != incident.Unknown || len(w.engine.Alerts(nil)) != 0 {
		t.Errorf("300 s without data: %v, %d alerts", w.state("slow"), len(w.engine.Alerts(nil)))
	}
	w.steps(330)
	fixture.Equal(t, w.state("slow"), incident.Unknown, "an hour without data")
	w.steps(1)
	fixture.EqualSlices(t, w.engine.Findings(), nil, "after more than an hour without data")
}

// TestLatchSurvivesWithoutData holds that a latched fault outlives its GPU.
func TestLatchSurvivesWithoutData(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lostCheck)
	w.steps(1, lost()...)
	w.steps(1000)
	f := w.engine.Findings()
	fixture.If(t, len(f) != 1 || f[0].State != incident.Failed || !f[0].Latched, "%+v", f)
}

// TestDerivedMetricsOfADeadGPUAreGone checks the evaluations between the steps that derive metrics: they show a dead
// GPU's metrics no longer than the last step.
func TestDerivedMetricsOfADeadGPUAreGone(t *testing.T) {
	w := newWorld(t)
	read := func(up ...float64) (all []collectors.Sample) {
		for i, v := range up {
			gpu := string(rune('0' + i))
			all = append(all, on(gpu, collectors.Up, v), on(gpu, device.MemoryBytes, 10, "used"),
				on(gpu, device.MemoryBytes, 10, "free"), on(gpu, device.Temperature, 40, "gpu"))
		}
		slices.SortStableFunc(all, func(a, b collectors.Sample) int { return len(a.Metric.Name) - len(b.Metric.Name) })
		return all
	}
	of := func(m *collectors.Metric, samples []collectors.Sample) (gpus string) {
		_, s := w.look(time.Second, nil, samples...)
		all := map[string]bool{}
		for _, x := range s.Of(m) {
			all[x.Labels[0]] = true
		}
		for _, gpu := range slices.Sorted(maps.Keys(all)) {
			gpus += gpu
		}
		return gpus
	}
	w.steps(2, read(1, 1)...)
	for _, c := range []struct {
		metric *collectors.Metric
		up     []float64
		want   string
	}{{derived.MemoryPressure, []float64{1, 1}, "01"}, {derived.MemoryPressure, []float64{1, 0},
		"0"}, {derived.MemoryPressure, []float64{0, 1}, "1"}, {derived.MemoryPressure, nil, ""},
		{derived.FaultScore, []float64{1, 0}, "01"}, {derived.LemonScore, []float64{0, 1}, "01"}} {
		fixture.Equal(t, of(c.metric, read(c.up...)), c.want, "%s of GPUs that answer %v: of", c.metric.Name, c.up)
	}
}

// sorted returns the bytes of s in order.
func sorted(s string) string {
	b := []byte(s)
	slices.Sort(b)
	return string(b)
}

// TestIncidentCountsOnce repeats an incident, before and after a restart, and beside another one.
func TestIncidentCountsOnce(t *testing.T) {
	w := newWorld(t, Checks()...)
	up := on("0", collectors.Up, 1)
	began, last := w.now, "" // last has the IDs of the events that raised a total
	total := func(events ...incident.Event) (n float64) {
		last = ""
		_, s := w.look(time.Second, events, up)
		for _, x := range s.Of(IncidentsTotal) {
			if x.Labels[0] != "0" {
				continue
			}
			n += x.Value
			if o := x.Origin; o == nil || !o.Since.Equal(began) || (o.Event == "") != (x.Value == 0) {
				t.Errorf("%v began with %+v", x, o)
			} else if o.Event != "" {
				last += o.Event
			}
		}
		return n
	}
	first, second := happened("a", incident.WhatXID, 79, "0", w.now), happened("b", incident.WhatXID, 31, "0", w.now)
	along := happened("c", incident.WhatXID, 45, "0", w.now)
	along.Follows = "b"
	transition := happened("d", incident.WhatXID, 79, "0", w.now)
	transition.Kind = incident.KindTransition
	for i, c := range []struct {
		events []incident.Event
		want   float64
		raised string
	}{{nil, 0, ""}, {[]incident.Event{first}, 1, "a"}, {[]incident.Event{first}, 1, "a"},
		{[]incident.Event{second, first, second}, 2, "ab"}, {[]incident.Event{along, transition}, 2, "ab"}} {
		if got := total(c.events...); got != c.want || sorted(last) != c.raised {
			t.Errorf("pass %d: %v incidents, raised by %q, want %v, by %q", i, got, last, c.want, c.raised)
		}
	}
	w.restart("same")
	began = w.now
	fixture.Equal(t, total(first, second), 0, "told again after a restart")
	fixture.Equal(t, total(happened("e", incident.WhatXID, 79, "0", w.now)), 1, "another after a restart")
	for ago, holds := range map[time.Duration]bool{5 * time.Minute: true, 5*time.Minute + 1: false} {
		m, e := newMemory(birth), happened("f", incident.WhatXID, 79, "0", birth.Add(-ago))
		for i, id := range []string{"f", "f", "g"} { // the driver may ask for the reset later
			e.ID, e.NeedsReset = id, i > 0
			m.remember(e)
			fixture.Equal(t, m.incidents[len(m.incidents)-1].NeedsReset, holds && i > 0,
				"%d: of %v before anybody watched: it holds until a reset", i, ago)
		}
	}
}

// TestCompanionsRaiseNothing lets each XID of the table follow another incident, and come by itself. A follower does
// not count as an incident of its own.
func TestCompanionsRaiseNothing(t *testing.T) {
	t.Parallel()
	up := on("0", collectors.Up, 1)
	for code, x := range incident.XIDs() {
		raised := func(follows string, checks []*Check) string {
			w := newWorld(t, checks...)
			for _, id := range []string{"a", "b", "c"} {
				e := happened(id, incident.WhatXID, code, "0", w.now.Add(time.Minute))
				e.Follows, e.PID, e.Workload = follows, 77, "pod:a"
				w.step(time.Minute, []incident.Event{e}, up)
			}
			return w.failing()
		}
		fixture.Equal(t, raised("other", eventChecks), "", "XID %d along with another", code)
		if got := raised("", Checks()); x.Severity >= incident.Critical &&
			!strings.Contains(got, " gpu=0 "+x.Severity.State().String()) {
			t.Errorf("XID %d, which is %v, by itself: %q", code, x.Severity, got)
		}
	}
}

// TestUnreadableStatisticsAreReported holds that the state of faults survives
// unreadable statistics, and that their loss is an error.
func TestUnreadableStatisticsAreReported(t *testing.T) {
	w := lostBoth(t)
	saved := fixture.Value(w.engine.Save("same"))(t)
	for text, want := range map[string]bool{string(saved.Derived): false, `{"gpus": 1}`: true, "": false} {
		saved.Derived = []byte(text)
		w.engine = NewEngine([]*Check{lostCheck}, w.now)
		_, err := w.engine.Restore(saved, "same", w.now)
		fixture.If(t, (err != nil) != want, "%.20s: %v", text, err)
		fixture.Equal(t, w.failing(), lostFirst+"; "+lostSecond, "%.20s: there is left", text)
	}
}
