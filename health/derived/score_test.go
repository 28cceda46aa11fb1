package derived

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// fault reports a fault of a rig's GPU.
func fault(r *rig, gpu int, id string, class incident.Class, severity incident.Severity) {
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: id, Class: class, Severity: severity,
		Entity: incident.Entity{GPU: r.gpus[gpu].gpu, UUID: r.gpus[gpu].uuid}}, r.now)
}

func TestFaultScores(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	r.step(step, nil)
	for _, class := range incident.Classes {
		fixture.Equal(t, r.get(FaultScore, 0, string(class)), 0, "%s before any fault", class)
	}
	score := func(class incident.Class) float64 { return r.get(FaultScore, 0, string(class)) }
	fault(r, 0, "a", incident.MemoryFault, incident.Critical)
	fault(r, 0, "a", incident.MemoryFault, incident.Critical) // the same incident again
	r.Fault(incident.Event{Kind: incident.KindTransition, ID: "t", Class: incident.MemoryFault,
		Severity: incident.Critical, Entity: incident.Entity{UUID: r.gpus[0].uuid}}, r.now)
	// on the node
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: "n", Class: incident.MemoryFault,
		Severity: incident.Critical}, r.now)
	r.step(step, nil)
	got := score(incident.MemoryFault)
	fixture.If(t, far(got, 1, .01), "one critical fault: %g, want 1", got)
	r.step(time.Hour, nil)
	got = score(incident.MemoryFault)
	fixture.If(t, far(got, .5, .01), "an hour later: %g, want half", got)
	r.now = r.now.Add(-24 * time.Hour)
	r.step(time.Hour, nil)
	got = score(incident.MemoryFault)
	fixture.If(t, far(got, .25, .01), "an hour after the clock went back a day: %g, want a quarter", got)
	fixture.Equal(t, r.get(FaultScore, 1, string(incident.MemoryFault)), 0, "the other GPU has")
	// identified by its index
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: "i", Class: incident.ComputeTimeout,
		Severity: incident.Critical, Entity: incident.Entity{GPU: "1"}}, r.now)
	r.step(step, nil)
	got = r.get(FaultScore, 1, string(incident.ComputeTimeout))
	fixture.If(t, far(got, 1, .01), "a fault of the GPU with index 1: %g", got)
}

func TestTenantFaultsDoNotMakeALemon(t *testing.T) {
	r := newRig(2)
	r.step(step, nil)
	for i := range 12 { // two hours apart
		fault(r, 0, fmt.Sprint("tenant", i), incident.ApplicationFault, incident.Critical)
		// of another class, and a tenant's
		nvlink := incident.Event{Kind: incident.KindIncident, ID: fmt.Sprint("nvlink", i), What: incident.WhatXID,
			Code: 137, Severity: incident.XIDs()[137].Severity, Class: incident.XIDs()[137].Class}
		nvlink.Entity = incident.Entity{UUID: r.gpus[0].uuid}
		r.Fault(nvlink, r.now)
		for k := range 5 { // simultaneous faults are one offence
			fault(r, 1, fmt.Sprint("hardware", i, k), incident.HardwareFault, incident.Severity(2+k%2))
		}
		r.now = r.now.Add(2 * time.Hour)
		r.step(step, nil)
	}
	if good, bad := r.get(LemonScore, 0), r.get(LemonScore, 1); good != 0 || bad < 11 || bad > 12 {
		t.Errorf("a tenant's faults score %g, want 0; twelve offences score %g, want a little under 12", good, bad)
	}
	before := r.get(LemonScore, 1)
	r.now = r.now.Add(30 * 24 * time.Hour)
	r.step(step, nil)
	got := r.get(LemonScore, 1)
	fixture.If(t, far(got, before/8, .01), "30 days later: %g, want an eighth of %g", got, before)
}

func TestScoresOutliveARestart(t *testing.T) {
	r := newRig(2)
	for _, g := range r.gpus {
		g.values[eccCorrected] = 0
	}
	r.step(5*time.Minute, func() { r.gpus[0].values[eccCorrected] += 2 })
	fault(r, 0, "a", incident.MemoryFault, incident.Emergency)
	r.step(step, nil)
	text := fixture.Value(json.Marshal(r.Save(r.now)))(t)
	again := newRig(2)
	again.now, again.gpus = r.now, r.gpus
	fixture.Must(t, again.Restore(text, asItIs))
	fault(again, 0, "a", incident.MemoryFault, incident.Emergency) // repeated from the journal
	again.step(step, nil)
	got := again.get(FaultScore, 0, string(incident.MemoryFault))
	fixture.If(t, far(got, 2, .02), "the fault score is %g, want 2", got)
	got = again.get(LemonScore, 0)
	fixture.If(t, far(got, 2, .02), "the lemon score is %g, want 2", got)
	rate, sum := again.get(ECCCorrectablePerHour, 0), again.get(ECCCorrectableCUSUM, 0)
	fixture.If(t, rate < 50 || sum < 5, "%g errors an hour, sum %g", rate, sum)
	for _, bad := range []string{``, `[]`, `{"gpus":{"x":5}}`} {
		fixture.If(t, New().Restore([]byte(bad), asItIs) == nil, "%q is taken for a state", bad)
	}
	odd := newRig(1)
	text = []byte(`{"gpus":{"` + odd.gpus[0].uuid +
		`":{"ecc":{"next":-5},"pcie":{"next":999},"faults":{"x":{},"memory-fault":null},` +
		`"rows":{"times":[2,1],"values":[1]}},"y":null}}`)
	fixture.Must(t, odd.Restore(text, asItIs))
	odd.gpus[0].values[remappedRows] = 1
	odd.step(2*time.Minute, nil)
	whole(t, odd.last)
}

func TestClockJumpKeepsPresentGPUs(t *testing.T) {
	r := newRig(1)
	r.step(step, nil)
	fault(r, 0, "a", incident.MemoryFault, incident.Emergency)
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: "b", Class: incident.MemoryFault,
		Severity: incident.Critical, Entity: incident.Entity{UUID: "GPU-gone"}}, r.now)
	r.gpus = append(r.gpus, newRig(2).gpus[1])
	r.now = r.now.Add(100 * 24 * time.Hour)
	r.step(step, nil)
	if got := r.get(LemonScore, 0); got <= 0 || len(r.histories) != 2 || r.histories["GPU-gone"] != nil {
		t.Errorf("the lemon score is %g, %d histories", got, len(r.histories))
	}
}

// TestFaultsAddUp checks the scores of a fault class and of the GPU by exact
// sums. The second fault follows the first after a time.
func TestFaultsAddUp(t *testing.T) {
	for _, c := range []struct {
		first, second incident.Severity
		after         time.Duration
		score, lemon  float64
	}{
		{incident.None, incident.None, 0, 0, 0}, {incident.Info, incident.None, 0, .1, .1},
		{incident.Warning, incident.None, 0, .5, .5}, {incident.Critical, incident.None, 0, 1,
			1}, {incident.Emergency, incident.None, 0, 2, 2},
		{-1, incident.None, 0, 0, 0}, {incident.Emergency + 1, incident.None, 0, 2, 2},
		{incident.Critical, incident.Critical, 0, 1 + 1.25, 1},
		{incident.Critical, incident.Critical, inARow, .5 + 1.25, 1}, {incident.Critical, incident.Critical,
			inARow + time.Second, .5 + 1, 2},
		{incident.Warning, incident.Critical, time.Minute, .5 + 1.25, 1},
		{incident.Critical, incident.Warning, time.Minute, 1 + .625, 1}, {incident.Critical,
			incident.Emergency, inARow, .5 + 2.5, 2},
		{incident.Critical, incident.Critical, -time.Second, 1 + 1.25, 2}, // the clock was set back: another offence
	} {
		r := newRig(1)
		r.step(step, nil)
		fault(r, 0, "first", incident.HardwareFault, c.first)
		r.now = r.now.Add(c.after)
		fault(r, 0, "second", incident.HardwareFault, c.second)
		h := r.histories[r.gpus[0].uuid]
		if got, lemon := h.Faults[incident.HardwareFault].Score.Value, h.Lemon.Value; far(got, c.score, .02) ||
			far(lemon, c.lemon, .01) {
			t.Errorf("%v, and %v %v later: %g, and of the GPU %g; want %g and %g", int(c.first), int(c.second),
				c.after, got, lemon, c.score, c.lemon)
		}
	}
	r := newRig(1)
	r.step(step, nil)
	for n, want := range []float64{1, 2.25, 3.75, 5.5, 7.5, 9.5, 11.5} {
		fault(r, 0, fmt.Sprint(n), incident.MemoryFault, incident.Critical)
		got := r.histories[r.gpus[0].uuid].Faults[incident.MemoryFault].Score.Value
		fixture.If(t, far(got, want, 1e-9), "%d in a row: %g, want %g", n+1, got, want)
	}
}

// TestOldHistoriesMakeRoom checks when an absent GPU is forgotten in favour of
// a new one, and that a present one is not.
func TestOldHistoriesMakeRoom(t *testing.T) {
	for after, want := range map[time.Duration]bool{historyKept: true, historyKept + time.Second: false} {
		r := newRig(1)
		r.step(step, nil)
		there, gone := r.gpus[0].uuid, "GPU-gone"
		r.history(gone, r.now)
		r.history("GPU-new", r.now.Add(after))
		if kept := r.histories[gone] != nil; kept != want || r.histories[there] == nil {
			t.Errorf("%v after it was seen a GPU is remembered: %v, and one that is there: %v", after, kept,
				r.histories[there] != nil)
		}
	}
}

// TestMinuteOfCorrectedErrors checks what a minute adds to the sum and to the baseline, with exact numbers.
func TestMinuteOfCorrectedErrors(t *testing.T) {
	slow := -math.Expm1(-time.Minute.Seconds() / baselineTau.Seconds())
	for _, c := range []struct{ usual, errors, sum, later float64 }{
		{0, 0, 0, 0}, {0, 1, .5, slow}, {0, 4, 3.5, 4 * slow}, {0, 5, 3.5, 4 * slow}, {.25, 4.25, 3.5, .25 + 4*slow},
		{9, 9, 0, 9}, {9, 21, 3.5, 9 + 12*slow}, {9, 22, 3.5, 9 + 12*slow}, {9, 0, 0, 9 - 9*slow},
	} {
		e := errorRate{Baseline: c.usual, Next: windowSize - 1}
		e.add(c.errors / 2)
		e.add(math.NaN())
		e.add(c.errors / 2)
		if e.Minute != c.errors || e.hour() != c.errors || !e.Seen {
			t.Errorf("%g errors are %g in this minute, and %g in the hour", c.errors, e.Minute, e.hour())
		}
		e.advance()
		if far(e.Sum.Up, c.sum, 1e-9) || far(e.Baseline, c.later, 1e-9) || e.Minute != 0 || e.Next != 0 ||
			e.Minutes[windowSize-1] != c.errors || e.hour() != c.errors {
			t.Errorf("%g errors where %g are usual: the sum is %g and usual are %g; want %g and %g", c.errors, c.usual,
				e.Sum.Up, e.Baseline, c.sum, c.later)
		}
	}
	var e errorRate
	e.add(math.NaN())
	fixture.If(t, e.Seen, "errors that nobody counts are seen")
}

// minutes runs a GPU under a load for n minutes; its temperature is known in the first ones.
func (f *drift) minutes(n int, load, celsius float64, known int) {
	for i := range n {
		f.mean[utilization] = mean{2 * load, 2}
		if i < known {
			f.mean[coreTemperature] = mean{3 * celsius, 3}
		}
		f.advance()
	}
}

// TestBaselineTakesAnHour checks how long a baseline is learned, from which values, and when another load restarts it.
func TestBaselineTakesAnHour(t *testing.T) {
	var f drift
	f.minutes(windowSize-1, 0, 60, windowSize)
	fixture.If(t, f.known, "it is known before the hour is over")
	if f.minutes(1, .1, 60, 1); !f.known || f.center[coreTemperature] != 60 || f.sigma[coreTemperature] != 1 ||
		f.learning != nil || f.sigma[power] != 0 {
		t.Errorf("after an hour it is known: %v, %g and %g", f.known, f.center[coreTemperature],
			f.sigma[coreTemperature])
	}
	up := func() float64 { return f.sums[coreTemperature].Up }
	if f.minutes(1, 0, 63, 1); up() != 2.5 || f.sums[power].Up != 0 {
		t.Errorf("three degrees more are %g", up())
	}
	f.minutes(1, 0, 90, 0)
	fixture.Equal(t, up(), 2.5, "a temperature that is not known is")
	if f.minutes(windowSize-1, .5, 90, windowSize); !f.known || up() != 2.5 {
		t.Errorf("another load for less than an hour: %v, %g", f.known, up())
	}
	f.minutes(1, 0, 62, 1)
	fixture.Equal(t, up(), 4, "the load as it was, and two degrees more")
	f.minutes(windowSize-1, .5, 90, windowSize)
	fixture.If(t, !f.known, "another load counts from when it was as before")
	if f.minutes(1, .5, 90, 1); f.known || up() != 0 {
		t.Errorf("another load for an hour: %v, %g", f.known, up())
	}
	if f.minutes(windowSize-1, .5, 70, windowSize); !f.known || f.center[coreTemperature] != 70 {
		t.Errorf("the hour begins with the load: %v, %g", f.known, f.center[coreTemperature])
	}
	for known, want := range map[int]float64{windowSize / 2: 1, windowSize/2 - 1: 0} {
		var f drift
		if f.minutes(windowSize, 0, 60, known); !f.known || f.sigma[coreTemperature] != want {
			t.Errorf("known in %d minutes of an hour: a deviation of %g", known, f.sigma[coreTemperature])
		}
		if f.minutes(1, 0, 65, 1); (f.sums[coreTemperature].Up > 0) != (want > 0) {
			t.Errorf("known in %d minutes of an hour: five degrees more are %g", known, f.sums[coreTemperature].Up)
		}
	}
	var idle drift
	idle.minutes(windowSize, math.NaN(), 60, windowSize)
	fixture.If(t, idle.known || idle.learning != nil, "a load that is not known is learned")
	for other, want := range map[float64]bool{.1: true, .11: false} {
		var f drift
		f.minutes(windowSize-1, 0, 60, windowSize)
		f.minutes(1, other, 60, 1)
		fixture.Equal(t, f.known, want, "the last minute's load is %g, and the hour is known", other)
	}
}

// TestLinkComparisonOmitsTheWorstMinutes checks the compared values of a link's counters: bytes per second, and the
// errors of ten minutes without the three worst.
func TestLinkComparisonOmitsTheWorstMinutes(t *testing.T) {
	var l link
	l.unread()
	now, errors, bytes := birth, 1000., 5e9
	settle := func(more float64) {
		now, errors, bytes = now.Add(time.Minute), errors+more, bytes+60e6
		l.failed, l.sent = errors, bytes
		l.settle(now)
	}
	if settle(0); usable(l.bytes.value) || usable(l.errors.value) {
		t.Errorf("of one look: %g bytes, %g errors", l.bytes.value, l.errors.value)
	}
	for n := 1; n <= spell; n++ {
		if settle(float64(n)); l.bytes.value != 1e6 || usable(l.errors.value) != (n == spell) {
			t.Errorf("after %d minutes: %g bytes a second, %g errors", n, l.bytes.value, l.errors.value)
		}
	}
	fixture.Equal(t, l.errors.value, 1+2+3+4+5+6+7, "… errors in ten minutes but for the worst")
	settle(100)
	fixture.Equal(t, l.errors.value, 2+3+4+5+6+7+8, "… errors in the next ten")
	errors = 0
	settle(0)
	fixture.Equal(t, l.errors.value, 2+3+4+5+6+7+8, "… errors after the counter began again")
	l.failed, l.sent = math.NaN(), math.NaN()
	if l.settle(now.Add(time.Minute)); usable(l.bytes.value) || usable(l.errors.value) {
		t.Errorf("where there are no counters: %g bytes, %g errors", l.bytes.value, l.errors.value)
	}
}

// TestScoreAgainstSiblings checks the score and the ratio of a count by
// exact numbers, and the required number of siblings.
func TestScoreAgainstSiblings(t *testing.T) {
	for _, c := range []struct {
		value    float64
		others   []float64
		floor    float64
		z, ratio float64 // z of -1: not compared
	}{
		{10, []float64{4, 4}, 2, -1, 0}, {10, []float64{4, 4, 4}, 2, 3, 1}, {math.NaN(), []float64{4, 4, 4}, 2, -1, 0},
		{10, []float64{0, 0, 0}, 2, 5, 5}, {28, []float64{16, 16, 16}, 2, 3, 12. / 18}, {0, []float64{16, 16, 16}, 2,
			-4, -16. / 18},
		{100, []float64{10, 20, 30}, 2, 80 / (madToSigma * 10), 80. / 22},
	} {
		p := peer{value: c.value}
		p.compare(c.others, c.floor)
		fixture.If(t, p.ok != (c.z != -1) || p.ok && (far(p.z, c.z, 1e-9) || far(p.ratio, c.ratio, 1e-9)),
			"%g beside %v: %+v; want %g and %g", c.value, c.others, p, c.z, c.ratio)
	}
}
