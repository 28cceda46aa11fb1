package jobs

import (
	"testing"

	"gpusteward/internal/fixture"
)

// TestEvidenceIsTold compares the text of the evidence.
func TestEvidenceIsTold(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
}

// TestSlowProcessorIsNotCode has the calls of a program that computes half of its
// time take a third longer.
func TestSlowProcessorIsNotCode(t *testing.T) {
	t.Parallel()
	usual := mean{shape: shape{wall: 0.03, away: 0.002, launching: 0.024, waiting: 0.004}}
	usual.around[computing] = 0.55
	now := mean{shape: shape{wall: 0.04, away: 0.003, launching: 0.033, waiting: 0.004}}
	now.around[computing] = 0.56
	fixture.Equal(t, causeOf(&usual, &now), "unknown", "told as")
}

// TestThreadMeter reads how long the main thread ran and waited for a processor.
func TestThreadMeter(t *testing.T) {
	t.Parallel()
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
