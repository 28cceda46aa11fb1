package jobs

import (
	"math"
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer/steps"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A stretch is some time in which all steps are alike.
type stretch struct {
	lasts    time.Duration
	step     time.Duration
	pattern  uint8
	launches uint32
}

// walk lets a process step in one way after the other.
func walk(p *pace, at int64, all ...stretch) int64 {
	for _, s := range all {
		for end := at + int64(s.lasts); at < end; at += int64(s.step) {
			one := steps.Step{Begin: at, End: at + int64(s.step), Pattern: s.pattern, Launches: s.launches,
				Waiting: steps.Micros(s.step.Microseconds() - 5000)}
			p.step(&one, 1)
		}
	}
	return at
}

// TestPace lets steps take longer, and less long.
func TestPace(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	usual, slow := stretch{10 * time.Minute, 100 * ms, 1, 40}, stretch{25 * time.Second, 130 * ms, 1, 40}
	slowFor := func(d time.Duration) stretch { s := slow; s.lasts = d; return s }
	evaluation := stretch{10 * time.Second, 20 * ms, 2, 9}
	saving := []stretch{usual}
	for range 20 {
		saving = append(saving, stretch{3 * time.Second, 3 * time.Second, 1, 40}, stretch{20 * time.Second, 100 * ms, 1, 40})
	}
	again := func(s stretch, pattern uint8) stretch { s.pattern = pattern; return s }
	for _, c := range []struct {
		name string
		does []stretch
		told bool
	}{
		{"healthy", []stretch{usual}, false},
		{"slow from now on", []stretch{usual, slow}, true},
		{"healthy with checkpoints", saving[1:], false},
		{"slow with checkpoints", append(slices.Clone(saving[1:]), slow), true},
		{"for less than its spans", []stretch{usual, slowFor(9 * time.Second)}, false},
		{"one long step", []stretch{usual, {time.Second, 3 * time.Second, 1, 40}, {15 * time.Second, 100 * ms, 1, 40}}, false},
		{"slow for three hours", []stretch{usual, slowFor(3 * time.Hour)}, true},
		{"slow for seven hours", []stretch{usual, slowFor(7 * time.Hour)}, false},
		{"healthy again", []stretch{usual, slow, {25 * time.Second, 100 * ms, 1, 40}}, false},
		{"slow before and after an evaluation", []stretch{usual, slow, evaluation, again(slow, 3)}, true},
		{"slow for less than its spans and one more", []stretch{usual, slowFor(18 * time.Second)}, false},
		{"slow after an evaluation", []stretch{usual, evaluation, again(slow, 3)}, true},
		{"faster, and as before", []stretch{usual, {time.Minute, 70 * ms, 1, 40}, {time.Minute, 100 * ms, 1, 40}}, true},
		{"more work", []stretch{usual, {20 * time.Second, 130 * ms, 1, 52}}, false},
		{"slow with more work", []stretch{usual, {time.Minute, 130 * ms, 1, 52}, {25 * time.Second, 170 * ms, 1, 52}}, true},
		{"not long enough to know", []stretch{{15 * time.Second, 100 * ms, 1, 40}, slow}, false},
	} {
		var p pace
		at := walk(&p, 1e12, c.does...)
		if s := p.slowdown(at); (s != nil) != c.told {
			t.Errorf("%s: %+v; want told: %v", c.name, s, c.told)
		} else if s != nil && (s.Cause != "gpu" || s.Seconds < 1.25*s.Usual || s.Seconds > 1.5*s.Usual) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

// TestCheckpointsAreNotUsual: a process is judged by its other spans.
func TestCheckpointsAreNotUsual(t *testing.T) {
	var p pace
	const ms = time.Millisecond
	for at := int64(1e12); at < 1e12+300e9; {
		at = walk(&p, at, stretch{3 * time.Second, 3 * time.Second, 1, 40}, stretch{13 * time.Second, 100 * ms, 1, 40})
	}
	if u := p.usual.shape[wall]; math.Abs(u-0.1) > 1e-3 || p.usual.spans < 10 {
		t.Errorf("a step usually takes %g s, as %g spans say", u, p.usual.spans)
	}
}

// TestPassingSlowness has a host that makes a program slow now and then. Nothing tells
// why. What is like it is told no more, and what is more is.
func TestPassingSlowness(t *testing.T) {
	var p pace
	at := int64(1e12)
	do := func(lasts, wall, held time.Duration) (told string) {
		for end := at + int64(lasts); at < end; at += int64(wall) {
			p.step(&steps.Step{Begin: at, End: at + int64(wall), Pattern: 1, Launches: 40,
				Held: steps.Micros(held.Microseconds())}, 1)
			if p.now != nil {
				told = p.now.Cause
			}
		}
		return told
	}
	const ms = time.Millisecond
	var told []string
	do(10*time.Minute, 100*ms, 0)
	for range 3 {
		told = append(told, do(25*time.Second, 140*ms, 0))
		do(time.Minute, 100*ms, 0)
	}
	told = append(told, do(30*time.Second, 300*ms, 200*ms))
	fixture.EqualSlices(t, told, []string{"unknown", "", "", "quota"}, "told")
}

// TestTwoJudgementsAgree on a cause, and each knows what was around the steps.
func TestTwoJudgementsAgree(t *testing.T) {
	p := pace{usual: usual{mean: mean{shape: shape{wall: 1}}, seen: 1}}
	wait := &mean{shape: shape{wall: 2, waiting: 1}, looks: 5}
	gate := &mean{shape: shape{wall: 2, held: 1}, looks: 5}
	unseen := &mean{shape: shape{wall: 2, held: 1}}
	for i, c := range []struct {
		slow *mean
		told string
	}{{wait, ""}, {gate, ""}, {unseen, ""}, {gate, "quota"}, {wait, "quota"}, {wait, "gpu"}} {
		p.tell(c.slow, int64(i+1))
		if s := p.now; (s == nil) != (c.told == "") || s != nil && s.Cause != c.told {
			t.Errorf("judgement %d: %+v, want %q", i, s, c.told)
		}
	}
	fixture.Equal(t, p.began, 4, "it was slow from … on")
	p.relearn(*unseen)
	fixture.Equal(t, p.usual.seen, 0, "what was around … spans is known")
}

// TestSlownessEndsWithTheSteps stops a process that is slow.
func TestSlownessEndsWithTheSteps(t *testing.T) {
	var p pace
	at := walk(&p, 1e12, stretch{time.Minute, 100 * time.Millisecond, 1, 40},
		stretch{time.Minute, 150 * time.Millisecond, 1, 40})
	if s := p.slowdown(at + 25e9); s == nil || math.Abs(s.Part()-1./3) > 0.01 {
		t.Errorf("after 25 s without steps: %+v, want a third lost", s)
	}
	fixture.Equal(t, p.slowdown(at+40e9), nil, "told after 40 s without steps")
}

// TestPausesExplainNothing lowers the clock while a process does not step.
func TestPausesExplainNothing(t *testing.T) {
	t.Parallel()
	h, now := newHost(t, 1), Evidence{Clock: 1}
	h.Observer.Evidence = func(string, int) Evidence { return now }
	h.trains(100)
	p := &h.Observer.processes[1].pace
	looks := p.span.all.looks
	now.Clock = 0.1
	h.wait(60)
	fixture.If(t, p.span.all.looks > looks+2 || looks == 0,
		"%g looks in the span, and %g after a minute without steps", looks, p.span.all.looks)
}

// TestEachCauseIsExplained compares the tables of causes.
func TestEachCauseIsExplained(t *testing.T) {
	for cause := range proofs {
		fixture.Equal(t, wire.SlowCauses[cause] == "", false, "%s lacks an explanation:", cause)
	}
	fixture.Equal(t, len(proofs), len(wire.SlowCauses), "causes that have evidence")
}

func TestUsualPauses(t *testing.T) {
	var m pauseMeter
	steps := func(n int, pause time.Duration) {
		for range n {
			m.longest = pause
			m.ended(1)
		}
	}
	steps(20, time.Second)
	if m.known() || m.usual != time.Second {
		t.Errorf("after 20 steps: usual %v, known %v", m.usual, m.known())
	}
	steps(1, 10*time.Minute) // a checkpoint
	steps(10, time.Second)
	steps(1, 10*time.Minute)
	if !m.known() || m.usual != time.Second {
		t.Errorf("after two checkpoints: usual %v, known %v; want a second", m.usual, m.known())
	}
	steps(1000, 100*time.Millisecond) // a validation
	fixture.Equal(t, m.usual, time.Second, "after a validation: usual")
	steps(16, 3*time.Second)
	fixture.Equal(t, m.usual, 3*time.Second, "of longer steps: usual")
}

// TestEvidenceIsTold compares the text of the evidence.
func TestEvidenceIsTold(t *testing.T) {
	usual := mean{shape: shape{wall: 0.5, waiting: 0.3, away: 0.1, busy: 0.3}}
	usual.around[cpu], usual.around[clock] = 0.03, 0.95
	slow := usual
	slow.shape[wall], slow.shape[away] = 0.75, 0.31
	slow.around[cpu] = 0.43
	late := slow
	late.shape[launching], late.around[delayed] = 0.001, 0.27
	crowded := usual
	crowded.shape[wall], crowded.shape[away], crowded.shape[launching] = 0.50556, 0.10333, 0.00222
	crowded.around[cpu], crowded.around[delayed] = 1, 1
	hot := usual
	hot.shape[wall], hot.shape[waiting], hot.shape[busy] = 0.75, 0.55, 0.55
	hot.around[clock], hot.around[thermal] = 0.61, 1
	for _, c := range []struct {
		now         mean
		cause, text string
	}{
		{slow, "cpu", "+0.25 s a step; host +0.21 s; CPU pressure 43 %, usually 3 %"},
		{late, "cpu", "+0.25 s a step; host +0.21 s; CPU pressure 43 %, usually 3 %; main thread waits 27 %, usually 0 %"},
		{crowded, "cpu", "+0.00556 s a step; host +0.00333 s; launching +0.00222 s; CPU pressure 100 %, usually 3 %; " +
			"main thread waits 100 %, usually 0 %"},
		{hot, "thermal", "+0.25 s a step; waiting +0.25 s; SM clock 61 %, usually 95 %; held down by temperature 100 %, " +
			"usually 0 %"},
	} {
		cause := causeOf(&usual, &c.now)
		if text := evidenceOf(cause, &usual, &c.now); cause != c.cause || text != c.text || len(text) > 128 {
			t.Errorf("%s: %s; want %s: %s", cause, text, c.cause, c.text)
		}
	}
}

// TestCausesAreToldApart has steps that take longer for two reasons at a time.
func TestCausesAreToldApart(t *testing.T) {
	usual := mean{shape: shape{wall: 0.1, waiting: 0.09, away: 0.005, launching: 0.005, busy: 0.095}}
	usual.around[clock] = 0.9
	late := surroundings{cpu: 0.4, delayed: 0.6, clock: 0.9}
	for _, c := range []struct {
		cause  string
		now    shape
		around surroundings
	}{
		{"memory", shape{wall: 0.17, away: 0.16, waiting: 0.01, allocating: 0.055, allocs: 30, busy: 0.1}, late},
		{"cpu", shape{wall: 0.17, away: 0.16, waiting: 0.01, busy: 0.1}, surroundings{cpu: 0.4, delayed: 0.8, clock: 0.9}},
		{"storage", shape{wall: 0.17, away: 0.16, waiting: 0.01, busy: 0.1},
			surroundings{cpu: 0.05, io: 0.3, delayed: 0.6, clock: 0.9}},
		{"reclaim", shape{wall: 0.17, away: 0.075, waiting: 0.09, busy: 0.095},
			surroundings{ram: 0.3, io: 0.3, computing: 0.3, clock: 0.9}},
		{"power", shape{wall: 0.17, away: 0.16, waiting: 0.01, busy: 0.165},
			surroundings{power: 1, cpu: 0.4, delayed: 0.6, clock: 0.5}},
		{"cpu", shape{wall: 0.17, away: 0.15, waiting: 0.02, collecting: 0.06, busy: 0.165}, late},
		{"code", shape{wall: 0.17, away: 0.075, waiting: 0.09, launching: 0.005, busy: 0.095},
			surroundings{computing: 0.45, clock: 0.9}},
		{"code", shape{wall: 0.17, away: 0.01, waiting: 0.09, launching: 0.07, busy: 0.095},
			surroundings{computing: 0.45, clock: 0.9}},
		{"collective", shape{wall: 0.17, away: 0.08, waiting: 0.09, collecting: 0.06, busy: 0.165}, late},
	} {
		fixture.Equal(t, causeOf(&usual, &mean{shape: c.now, around: c.around}), c.cause, "the cause of %v among %v", c.now, c.around)
	}
	// The calls of a program that computes half of its time take a third longer.
	usual = mean{shape: shape{wall: 0.03, away: 0.002, launching: 0.024, waiting: 0.004}, around: surroundings{computing: 0.55}}
	now := mean{shape: shape{wall: 0.04, away: 0.003, launching: 0.033, waiting: 0.004}, around: surroundings{computing: 0.56}}
	fixture.Equal(t, causeOf(&usual, &now), "unknown", "a slow processor is told as")
}

// TestThreadMeter reads how long the main thread ran and waited for a processor.
func TestThreadMeter(t *testing.T) {
	h := newHost(t, 1)
	var m threadMeter
	if ran, waited := m.look(h.Observer.Procfs, 1000, 1e9); ran != 0 || waited != 0 || m.at != 0 {
		t.Errorf("without a file: %g, %g", ran, waited)
	}
	h.ranks[0].scheduled(5e8, 1e8)
	m.look(h.Observer.Procfs, 1000, 2e9)
	h.ranks[0].scheduled(12e8, 2e8)
	if ran, waited := m.look(h.Observer.Procfs, 1000, 3e9); ran != 0.7 || waited != 0.1 {
		t.Errorf("ran %g, waited %g; want 0.7 and 0.1", ran, waited)
	}
}
