package jobs

import (
	"math"
	"testing"
	"time"

	"gpusteward/enforcer/steps"
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
	const ms = time.Millisecond
	usual, slow := stretch{10 * time.Minute, 100 * ms, 1, 40}, stretch{20 * time.Second, 130 * ms, 1, 40}
	slowFor := func(d time.Duration) stretch { s := slow; s.lasts = d; return s }
	evaluation := stretch{10 * time.Second, 20 * ms, 2, 9}
	again := func(s stretch, pattern uint8) stretch { s.pattern = pattern; return s }
	for _, c := range []struct {
		name string
		does []stretch
		told bool
	}{
		{"healthy", []stretch{usual}, false},
		{"slow from now on", []stretch{usual, slow}, true},
		{"for less than its spans", []stretch{usual, slowFor(9 * time.Second)}, false},
		{"one long step", []stretch{usual, {time.Second, 3 * time.Second, 1, 40}, {15 * time.Second, 100 * ms, 1, 40}}, false},
		{"slow for three hours", []stretch{usual, slowFor(3 * time.Hour)}, true},
		{"slow for seven hours", []stretch{usual, slowFor(7 * time.Hour)}, false},
		{"healthy again", []stretch{usual, slow, {25 * time.Second, 100 * ms, 1, 40}}, false},
		{"slow before and after an evaluation", []stretch{usual, slow, evaluation, again(slow, 3)}, true},
		{"slow after an evaluation", []stretch{usual, evaluation, again(slow, 3)}, true},
		{"faster, and as before", []stretch{usual, {time.Minute, 70 * ms, 1, 40}, {time.Minute, 100 * ms, 1, 40}}, true},
		{"more work", []stretch{usual, {20 * time.Second, 130 * ms, 1, 52}}, false},
		{"slow with more work", []stretch{usual, {time.Minute, 130 * ms, 1, 52}, {20 * time.Second, 170 * ms, 1, 52}}, true},
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

// TestSlownessEndsWithTheSteps stops a process that is slow.
func TestSlownessEndsWithTheSteps(t *testing.T) {
	var p pace
	at := walk(&p, 1e12, stretch{time.Minute, 100 * time.Millisecond, 1, 40},
		stretch{time.Minute, 150 * time.Millisecond, 1, 40})
	if s := p.slowdown(at + 25e9); s == nil || math.Abs(s.Part()-1./3) > 0.01 {
		t.Errorf("after 25 s without steps: %+v, want a third lost", s)
	}
	if s := p.slowdown(at + 40e9); s != nil {
		t.Errorf("after 40 s without steps: %+v", s)
	}
}

// TestPausesExplainNothing lowers the clock while a process does not step.
func TestPausesExplainNothing(t *testing.T) {
	h, now := newHost(t, 1), Evidence{Clock: 1}
	h.Observer.Evidence = func(string, int) Evidence { return now }
	for range 100 {
		h.step(nil)
	}
	p := &h.Observer.processes[1].pace
	looks := p.span.all.looks
	now.Clock = 0.1
	h.wait(60)
	if p.span.all.looks > looks+2 || looks == 0 {
		t.Errorf("%g looks in the span, and %g after a minute without steps", looks, p.span.all.looks)
	}
}

// TestEachCauseIsExplained compares the tables of causes.
func TestEachCauseIsExplained(t *testing.T) {
	for cause := range proofs {
		if wire.SlowCauses[cause] == "" {
			t.Errorf("%s is not explained", cause)
		}
	}
	if len(proofs) != len(wire.SlowCauses) {
		t.Errorf("%d causes have evidence, and %d are explained", len(proofs), len(wire.SlowCauses))
	}
}
