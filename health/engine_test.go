package health

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

var birth = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A world is an engine with a clock.
type world struct {
	t      *testing.T
	engine *Engine
	now    time.Time
}

func newWorld(t *testing.T, checks ...*Check) *world {
	t.Helper()
	return &world{t, NewEngine(checks, birth), birth}
}

// step evaluates once, d after the time before.
func (w *world) step(d time.Duration, events []incident.Event, samples ...collectors.Sample) []incident.Event {
	changes, _ := w.look(d, events, samples...)
	return changes
}

// look is step, and returns the samples too, with those that the evaluation adds.
func (w *world) look(d time.Duration, events []incident.Event, samples ...collectors.Sample) ([]incident.Event, *derived.Snapshot) {
	w.now = w.now.Add(d)
	s := derived.NewSnapshot(samples)
	return w.engine.Eval(s, events, w.now), s
}

// steps evaluates n times, 10 s apart, and returns all changes.
func (w *world) steps(n int, samples ...collectors.Sample) (all []incident.Event) {
	for range n {
		all = append(all, w.step(step, nil, samples...)...)
	}
	return all
}

func (w *world) state(check string) incident.State {
	for _, f := range w.engine.Findings() {
		if f.Check == check {
			return f.State
		}
	}
	return incident.OK
}

func on(gpu string, m *collectors.Metric, v float64, labels ...string) collectors.Sample {
	return collectors.Sample{Metric: m, Labels: append([]string{gpu, "GPU-" + gpu}, labels...), Value: v}
}

func hotAt(v float64) collectors.Sample { return on("0", device.TemperatureMargin, v) }

var hotCheck = &Check{ID: "hot", Alert: "Hot", Summary: "It is hot.",
	Detail: "{entity} {has|had} {value} left.", Levels: []Level{
		{Severity: incident.Warning, When: Value(device.TemperatureMargin).AtMost(0, 3), For: of(3, 4)},
		{Severity: incident.Critical, When: Value(device.TemperatureMargin).AtMost(-10, -8), For: of(2, 2)},
	}}

func TestEnterNeedsKOfN(t *testing.T) {
	w := newWorld(t, hotCheck)
	for i, c := range []struct {
		margin float64
		want   incident.State
	}{{9, incident.OK}, {-1, incident.OK}, {0, incident.OK}, {5, incident.OK}, {-1, incident.Degraded}, {-11,
		incident.Degraded}, {-12, incident.Unhealthy}} {
		w.steps(1, hotAt(c.margin))
		fixture.Need(t, w.state("hot"), c.want, "sample %d, %v", i, c.margin)
	}
}

func TestLeaveNeedsTheClearThresholdAndTheHoldDown(t *testing.T) {
	w := newWorld(t, hotCheck)
	w.steps(3, hotAt(-1))
	w.steps(60, hotAt(2)) // above the threshold that sets it, and below the one that clears it
	fixture.Need(t, w.state("hot"), incident.Degraded, "between the thresholds for 10 minutes")
	w.steps(3, hotAt(-1))
	w.steps(3, hotAt(20))
	fixture.Equal(t, w.engine.Findings()[0].Severity, incident.Warning, "clear for three samples, and it takes four")
	w.steps(25, hotAt(20))
	_, s := w.look(step, nil, on("0", collectors.Up, 1), hotAt(20))
	fixture.Equal(t, s.Of(Status)[0].Value, 0, "the health of a GPU whose fault is over")
	fixture.Need(t, w.state("hot"), incident.Recovering, "clear for less than the hold-down")
	f := w.engine.Findings()[0]
	f = Finding{Severity: f.Severity, Recovered: f.Recovered, Clears: f.Clears}
	fixture.Equal(t, f, Finding{Severity: incident.Info, Recovered: w.now.Add(-28 * step), Clears: w.now.Add(step)}, "it is over")
	fixture.Equal(t, len(w.engine.Alerts(nil)), 1, "the alert ended before the hold-down did")
	changes := w.steps(1, hotAt(20))
	if len(changes) != 1 || changes[0].To != incident.OK || changes[0].From != incident.Recovering ||
		len(w.engine.Alerts(nil)) != 0 {
		t.Errorf("after the hold-down: %+v, %d alerts", changes, len(w.engine.Alerts(nil)))
	}
}

// heldFor returns the number of samples for which a single fault is held.
func (w *world) heldFor() (n int) {
	w.steps(3, hotAt(-1))
	for w.state("hot") != incident.OK {
		w.steps(1, hotAt(20))
		n++
	}
	return n
}

func TestFlapsAreHeldLonger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hotCheck)
	var got []int
	for range 6 {
		got = append(got, w.heldFor())
	}
	if want := []int{30, 60, 120, 240, 360, 360}; !slices.Equal(got, want) {
		t.Errorf("held for %v samples, want %v: doubled for each flap, an hour at most", got, want)
	}
	w.steps(361, hotAt(20))
	fixture.Equal(t, w.heldFor(), 30, "after an hour of peace: held for … samples")
}

func TestLevelWithoutSignalEndsOnItsOwn(t *testing.T) {
	t.Parallel()
	either := &Check{ID: "either", Alert: "Either", Summary: "One of two.", Levels: []Level{
		{Severity: incident.Warning, When: Value(device.TemperatureMargin).AtMost(0, 3), For: of(3, 4)},
		{Severity: incident.Warning, When: Value(device.PerformanceState).Is(8), For: of(2, 2)},
		{Severity: incident.Critical, When: Value(device.Power, "scope", "gpu").Above(900),
			For: of(2, 2).every(10 * time.Minute)},
	}}
	w := newWorld(t, either)
	wanting := on("0", device.PerformanceState, 0)
	w.steps(3, hotAt(-1), wanting)
	w.steps(2, wanting)
	fixture.Equal(t, w.state("either"), incident.Degraded, "two samples after the signal went")
	w.steps(1, wanting)
	fixture.Equal(t, w.state("either"), incident.Recovering, "three samples after the signal went")
	w.steps(28, wanting)
	fixture.Equal(t, w.state("either"), incident.OK, "the hold-down after the signal went")
	// it is read every ten minutes, and still counts in between
	w.steps(180, wanting, on("0", device.Power, 950, "average", "gpu"))
	fixture.Equal(t, w.state("either"), incident.Unhealthy, "a level that is sampled each ten minutes")
}

func TestMissingDataIsUnknown(t *testing.T) {
	w := newWorld(t, hotCheck)
	up := on("0", collectors.Up, 1)
	w.steps(5, up, hotAt(20))
	w.steps(2, up)
	fixture.Equal(t, w.state("hot"), incident.OK, "after two samples without data")
	changes := w.steps(1, up)
	fixture.Need(t, len(changes) != 1 || changes[0].To != incident.Unknown, false, "after three: %+v", changes)
	_, s := w.look(step, nil, up)
	for _, sample := range s.Of(Status) {
		t.Errorf("a GPU of which nothing is known has a health: %+v", sample)
	}
	if got := s.Of(CheckUnknown); !slices.ContainsFunc(got,
		func(s collectors.Sample) bool { return s.Labels[0] == "0" && s.Value == 1 }) {
		t.Errorf("checks that are unknown: %+v", got)
	}
	w.steps(1, up, hotAt(20))
	fixture.Equal(t, w.state("hot"), incident.OK, "data is back, and the state is not")
}

func TestEndedWorkloadOrTenantIsNotUnknown(t *testing.T) {
	t.Parallel()
	for by, of := range map[string]func(who string, v float64) collectors.Sample{
		"workload": func(who string, v float64) collectors.Sample { return on("0", workloads.WorkloadUse, v, who, "sm") },
		"tenant":   func(who string, v float64) collectors.Sample { return on("0", workloads.QuotaChargeDrift, v, who) },
	} {
		w := newWorld(t, &Check{ID: "busy", Alert: "Busy", Summary: "Busy.", Levels: []Level{{Severity: incident.Warning,
			When: Value(of("", 0).Metric, "by", by).Above(.5)}}})
		w.steps(1, of("a", .1), of("b", .9))
		fixture.Need(t, w.failing(), "busy gpu=0,"+by+"=b degraded", "while it is there")
		w.steps(10)
		fixture.Equal(t, w.state("busy"), incident.Recovering, "a %s that ended while it failed", by)
		w.steps(30)
		fixture.EqualSlices(t, w.engine.Findings(), nil, "after the hold-down")
		up, holds := on("0", collectors.Up, 1), on("0", workloads.WorkloadMemory, 1, "b", "")
		w.steps(1, up, of("b", .9))
		w.steps(4, on("1", collectors.Up, 1))
		fixture.EqualSlices(t, w.engine.Findings(), nil, "a %s whose GPU is gone", by)
		w.steps(1, up, holds, of("b", .9))
		w.steps(4, up, holds)
		fixture.Need(t, w.state("busy"), incident.Recovering, "a %s that goes on", by)
		w.steps(1, up)
		fixture.Equal(t, w.state("busy") == incident.OK, by == "workload", "a %s without its memory is over", by)
	}
}

// TestAnEndedJobHasNoAlert ends a job that hangs, which the driver or only the broker knows.
func TestAnEndedJobHasNoAlert(t *testing.T) {
	t.Parallel()
	check := Checks()[slices.IndexFunc(Checks(), func(c *Check) bool { return c.ID == "job_hang" })]
	hangs := on("0", workloads.JobHang, 60, "ml", "user:7", "1", "absent", "train.py:7 in load")
	stays := func(gpu string) collectors.Sample { return on(gpu, workloads.WorkloadMemory, 1, "user:7", "") }
	steps := func(gpu string) collectors.Sample { return on(gpu, workloads.JobStepping, 0, "ml", "user:7") }
	for name, c := range map[string]struct {
		there, then []collectors.Sample
		want        incident.State
	}{
		"it goes on":                          {[]collectors.Sample{stays("0")}, []collectors.Sample{stays("0")}, incident.Recovering},
		"it has ended":                        {[]collectors.Sample{stays("0")}, nil, incident.OK},
		"another one of its user goes on":     {[]collectors.Sample{stays("0"), stays("1")}, []collectors.Sample{stays("1")}, incident.OK},
		"the driver does not know it":         {[]collectors.Sample{steps("0"), steps("1")}, []collectors.Sample{steps("1")}, incident.OK},
		"the driver does not, and it goes on": {[]collectors.Sample{steps("0")}, []collectors.Sample{steps("0")}, incident.Recovering},
	} {
		w := newWorld(t, check)
		up := []collectors.Sample{on("0", collectors.Up, 1), on("1", collectors.Up, 1)}
		w.steps(2, slices.Concat(up, c.there, []collectors.Sample{hangs})...)
		fixture.Need(t, w.state("job_hang"), incident.Degraded, "%s: while it hangs", name)
		fixture.Contains(t, w.engine.Findings()[0].Message, "rank 1, reason absent (it did not enter a collective that the others "+
			"have entered), where train.py:7 in load", "%s: it says", name)
		w.steps(4, slices.Concat(up, c.then)...)
		fixture.Equal(t, w.state("job_hang"), c.want, "%s: afterwards", name)
	}
}

var lostCheck = &Check{ID: "lost", Alert: "Lost", Summary: "It is lost.", Latched: true, Levels: []Level{
	{Severity: incident.Emergency, When: stuck("gpu_is_lost").Is(1)},
}}

func lost() []collectors.Sample {
	return []collectors.Sample{on("0", collectors.WorkerStuck, 1, "gpu_is_lost")}
}

// TestLinksTrainAfterABoot expects no lost link while links train for a moment
// after a boot, and a finding for a link that stays down.
func TestLinksTrainAfterABoot(t *testing.T) {
	t.Parallel()
	check := Checks()[slices.IndexFunc(Checks(), func(c *Check) bool { return c.ID == "nvlink_down" })]
	for boot, want := range map[string]incident.State{"same": incident.Unhealthy, "other": incident.OK} {
		w := newWorld(t, check)
		links := func(up float64) []collectors.Sample {
			return []collectors.Sample{on("0", collectors.Up, 1), on("0", links.NVLinkUp, up, "all")}
		}
		w.steps(3, links(18)...)
		w.restart(boot)
		w.steps(12, links(5)...)
		fixture.Equal(t, w.state("nvlink_down"), want, "after a restart in the %s boot", boot)
		w.steps(30, links(17)...)
		fixture.Equal(t, w.state("nvlink_down"), incident.Unhealthy, "a link that stays down in the %s boot", boot)
	}
}

// restart continues with a new engine, by way of JSON.
func (w *world) restart(boot string) []incident.Event {
	w.t.Helper()
	saved := fixture.Value(w.engine.Save("same"))(w.t)
	text := fixture.Value(json.Marshal(saved))(w.t)
	var back Saved
	fixture.Must(w.t, json.Unmarshal(text, &back))
	back.Faults = slices.Insert(back.Faults, 0, savedFault{Check: "a_check_of_another_version"})
	var checks []*Check
	for _, j := range w.engine.judges {
		checks = append(checks, j.Check)
	}
	w.engine = NewEngine(checks, w.now)
	return fixture.Value(w.engine.Restore(back, boot, w.now))(w.t)
}

func TestRestartRaisesNothingAgain(t *testing.T) {
	w := newWorld(t, hotCheck)
	w.steps(3, hotAt(-1))
	before := w.engine.Alerts(nil)
	fixture.Equal(t, len(w.restart("same")), 0, "a restart tells of")
	changes := w.steps(3, hotAt(-1))
	if after := w.engine.Alerts(nil); len(changes) != 0 || len(after) != 1 || !after[0].Starts.Equal(before[0].Starts) {
		t.Errorf("after a restart: %+v, alerts %+v, before %+v", changes, after, before)
	}
}

func TestLifetimeCounterAboveZeroIsNotAnIncident(t *testing.T) {
	t.Parallel()
	check := &Check{ID: "ecc", Alert: "ECC", Summary: "ECC.", Levels: []Level{{Severity: incident.Critical,
		When: Increase(faults.ECCErrors, 5*time.Minute, "severity", "uncorrected", "scope", "volatile").
			Lifetime().Above(0)}}}
	count := func(n float64) collectors.Sample { return on("0", faults.ECCErrors, n, "uncorrected", "volatile") }
	w := newWorld(t, check)
	w.steps(3, count(7))
	fixture.Need(t, w.state("ecc"), incident.OK, "7 errors that were there at the start are an incident")
	w.steps(1, count(2))
	fixture.Need(t, w.state("ecc"), incident.OK, "a counter that fell is an incident")
	w.steps(1, count(3))
	fixture.Need(t, w.state("ecc"), incident.Unhealthy, "one more error is none")
	w.steps(70, count(3))
	fixture.Need(t, w.state("ecc"), incident.OK, "long after")
	w.restart("same")
	w.steps(1, count(4))
	fixture.Equal(t, w.state("ecc"), incident.Unhealthy, "an error while the agent was down was missed")
}

func happened(id, what string, code int, gpu string, at time.Time) incident.Event {
	e := incident.Event{Version: incident.EventVersion, ID: id, Kind: incident.KindIncident, What: what, Code: code,
		First: at, Last: at, Time: at, Count: 1, Severity: incident.XIDs()[code].Severity,
		Class: incident.XIDs()[code].Class}
	if gpu != "" {
		e.Entity = incident.Entity{GPU: gpu, UUID: "GPU-" + gpu}
	}
	return e
}

// failing returns the failing checks, with their states.
func (w *world) failing() string {
	var all []string
	for _, f := range w.engine.Findings() {
		all = append(all, fmt.Sprintf("%s %s %s", f.Check, f.Entity, f.State))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func TestIncidentsAreCounted(t *testing.T) {
	up := []collectors.Sample{on("0", collectors.Up, 1), on("1", collectors.Up, 1), {Metric: collectors.DriverUp, Value: 1}}
	tenants := func(id string, w *world) incident.Event {
		e := happened(id, "xid", 31, "0", w.now)
		e.PID, e.Workload = 77, "pod:a"
		return e
	}
	for name, c := range map[string]struct {
		run  func(w *world)
		want string
	}{
		"XID 79": {
			func(w *world) { w.step(time.Second, []incident.Event{happened("a", "xid", 79, "1", w.now)}, up...) },
			"gpu_lost gpu=1 failed"},
		"an unknown XID": {
			func(w *world) { w.step(time.Second, []incident.Event{happened("a", "xid", 998, "1", w.now)}, up...) },
			"xid_unknown gpu=1 degraded"},
		"a tenant's, twice": {
			func(w *world) { w.step(time.Second, []incident.Event{tenants("a", w), tenants("b", w)}, up...) }, ""},
		"a tenant's, three times": {func(w *world) {
			w.step(time.Second, []incident.Event{tenants("a", w), tenants("b", w), tenants("c", w)}, up...)
		}, "xid_tenant gpu=0,workload=pod:a degraded"},
		"the same, told twice": {func(w *world) {
			w.step(time.Second, []incident.Event{tenants("a", w), tenants("a", w), tenants("a", w)}, up...)
		}, ""},
		"one on each of two GPUs": {func(w *world) {
			w.step(time.Second, []incident.Event{happened("a", "xid", 13, "0", w.now),
				happened("b", "xid", 31, "1", w.now)}, up...)
		}, "xid_spread node suspect"},
		"from before, of the kernel's ring": {func(w *world) {
			w.step(time.Second, []incident.Event{happened("a", "xid", 79, "1", w.now.Add(-time.Hour))}, up...)
		}, ""},
	} {
		w := newWorld(t, Checks()...)
		w.steps(2, up...)
		c.run(w)
		fixture.Equal(t, w.failing(), c.want, "%s", name)
	}
}

// TestTenantFaultsDoNotFailTheGPU has one workload, and one unknown program,
// cause each XID that programs can cause, all day long.
func TestTenantFaultsDoNotFailTheGPU(t *testing.T) {
	t.Parallel()
	for code, x := range incident.XIDs() {
		if !x.Tenant() {
			continue
		}
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Checks()...)
			for n := range 100 {
				of, unknown := happened(fmt.Sprint("a", n), incident.WhatXID, code, "0", w.now),
					happened(fmt.Sprint("b", n), incident.WhatXID, code, "0", w.now)
				of.PID, of.Workload, of.Owner = 77, "pod:a/b/c", "namespace:a"
				w.step(10*time.Second, []incident.Event{of, unknown}, on("0", collectors.Up, 1))
			}
			if s := worst(w.engine.Findings(), func(Finding) bool { return true }); s >= incident.Warning {
				t.Errorf("XID %d, 200 times: %v: %s", code, s, w.failing())
			}
		})
	}
}

func TestFaultOfManyOwnersIsAWarningAfterAHardwareFault(t *testing.T) {
	w := newWorld(t, Checks()...)
	for n := range 5 {
		fixture.Equal(t, w.state("xid_repeat"), incident.OK, "after %d owners", n)
		for again := range 5 {
			e := happened(fmt.Sprint(n, " ", again), incident.WhatXID, 31, "0", w.now)
			e.PID, e.Workload, e.Owner = 77, fmt.Sprintf("slurm:%d", 10*n+again), fmt.Sprintf("user:%d", 1000+n)
			w.step(10*time.Second, []incident.Event{e}, on("0", collectors.Up, 1))
		}
	}
	fixture.Equal(t, w.state("xid_repeat"), incident.Suspect, "after five owners")
	w.step(10*time.Second, []incident.Event{happened("row", incident.WhatXID, 63, "0", w.now)}, on("0", collectors.Up, 1))
	fixture.Equal(t, w.state("xid_repeat"), incident.Degraded, "after a fault of the hardware")
}

// TestXIDsOfABurstAreOneFault has an XID every two seconds, which is one, and another after a minute.
func TestXIDsOfABurstAreOneFault(t *testing.T) {
	w := newWorld(t, Checks()...)
	for n, seconds := range []time.Duration{2, 2, 2, 2, 60} {
		fixture.Equal(t, w.state("xid_repeat"), incident.OK, "after %d XIDs", n)
		after := seconds * time.Second
		w.step(after, []incident.Event{happened(fmt.Sprint(n), incident.WhatXID, 92, "0", w.now.Add(after))}, on("0", collectors.Up, 1))
	}
	fixture.Equal(t, w.state("xid_repeat"), incident.Unhealthy, "after a minute")
}

// TestFaultsDoNotDisplaceThoseOfOtherOwners has a tenant cause an XID each 6 s for a working
// day. The XIDs of others in the morning still count in the evening.
func TestFaultsDoNotDisplaceThoseOfOtherOwners(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Checks()...)
	xid := func(id string, code int, owner string) incident.Event {
		e := happened(id, incident.WhatXID, code, "0", w.now)
		e.Owner = owner
		return e
	}
	up := on("0", collectors.Up, 1)
	early := []incident.Event{xid("hardware", 92, "")}
	for n := range 4 {
		early = append(early, xid(fmt.Sprint("early", n), 31, fmt.Sprintf("user:%d", 1000+n)))
	}
	w.step(10*time.Second, early, up)
	for n := range 42 { // ten minutes each
		var all []incident.Event
		for i := range 100 {
			all = append(all, xid(fmt.Sprint("flood", n, " ", i), 13, "user:2000"))
		}
		w.step(10*time.Minute, all, up)
	}
	m := w.engine.memory.incidents
	if len(m) != mostIncidents || m[len(m)-1].ID != "flood41 99" ||
		!slices.IsSortedFunc(m, func(a, b incident.Event) int { return a.First.Compare(b.First) }) {
		t.Fatalf("%d incidents, the last is %s", len(m), m[len(m)-1].ID)
	}
	w.step(10*time.Second, []incident.Event{xid("late", 31, "user:1004")}, up)
	fixture.Equal(t, w.state("xid_repeat"), incident.Degraded, "after five owners")
	w.step(10*time.Second, []incident.Event{xid("again", 92, "")}, up)
	fixture.Equal(t, w.state("xid_repeat"), incident.Unhealthy, "after the hardware's second fault")
}

// TestOOMKillOfAGPUProcessIsAWarning holds that the host's lack of memory is a
// warning if it hit a process on a GPU, and that no other incident is.
func TestOOMKillOfAGPUProcessIsAWarning(t *testing.T) {
	for _, c := range []struct {
		what, workload string
		want           string
	}{
		{incident.WhatOOM, "pod:a", hostCheck}, {incident.WhatOOM, "pod:b", ""}, {incident.WhatOOM, "", ""},
		{"oom_cgroup", "pod:a", ""}, {incident.WhatHungTask, "pod:a", ""},
	} {
		w := newWorld(t, Checks()...)
		there := []collectors.Sample{on("0", collectors.Up, 1), on("0", workloads.WorkloadMemory, 1e9, "pod:a", "")}
		w.steps(2, there...)
		e := incident.Event{Kind: incident.KindIncident, ID: "x", What: c.what, Class: incident.ApplicationFault,
			Severity: incident.Info, Workload: c.workload, First: w.now, Last: w.now, Count: 1}
		w.step(time.Second, []incident.Event{e}, there...)
		w.steps(3, there...)
		got := w.state(hostCheck)
		fixture.If(t, (got == incident.Degraded) != (c.want != "") ||
			got != incident.Degraded && got != incident.OK, "%+v: %v", c, got)
	}
}

// TestDerivedMetricsAreShown holds that an evaluation adds the results of each of its parts, both in a step of the
// engine and between two steps, when nothing is computed anew.
func TestDerivedMetricsAreShown(t *testing.T) {
	w := newWorld(t)
	for _, after := range []time.Duration{step, time.Second} {
		_, s := w.look(after, nil, on("0", collectors.Up, 1), on("0", device.ModeEnabled, 1, "ecc"),
			on("0", workloads.Processes, 0, "compute"), on("0", device.MemoryBytes, 1e9, "used"),
			on("0", device.MemoryBytes, 3e9, "free"))
		for _, c := range []struct {
			metric *collectors.Metric
			labels []string
			want   float64
		}{{OrphanMemory, []string{""}, 1e9}, {derived.MemoryPressure, nil, .25}, {Away, nil, 0},
			{ConfigDrift, []string{"ecc", "on", "on"}, 0}} {
			fixture.Equal(t, valueOf(s, c.metric, "0", c.labels...), c.want,
				"%v after the last evaluation: %s is", after, c.metric)
		}
	}
}

// TestAnsweringGPUs checks when a GPU answers, and when the node does.
func TestAnsweringGPUs(t *testing.T) {
	for ups, want := range map[string][3]bool{"": {}, "1": {true, true}, "0": {}, "11": {true, true, true},
		"10": {false, true, false}, "01": {false, false, true}} {
		var all []collectors.Sample
		for i, up := range ups {
			all = append(all, on(fmt.Sprint(i), collectors.Up, float64(up-'0')))
		}
		s := derived.NewSnapshot(all)
		for i, e := range []incident.Entity{{}, gpuEntity("0"), gpuEntity("1")} {
			fixture.Equal(t, s.Answers(e), want[i], "%q: %v answers", ups, e)
		}
		for m, stays := range map[*collectors.Metric]bool{derived.FaultScore: true, derived.LemonScore: true,
			Away:            true,
			derived.Traffic: false, derived.PeerZScore: false} {
			labels := make([]string, len(m.Labels))
			labels[0], labels[1] = "0", "GPU-0"
			got := outlived(s, collectors.Sample{Metric: m, Labels: labels})
			fixture.If(t, got == (stays || want[1]), "%q: %s is outlived: %v", ups, m, got)
		}
		fixture.If(t, outlived(s, collectors.Sample{Metric: DevicesAway}), "%q: what is the node's is outlived", ups)
	}
}
