package jobs

import (
	"math"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A lateness makes the steps of a rank longer by a part.
type lateness struct {
	cause string
	late  func(m *actor, d time.Duration)
	all   bool // at each operation, not once in a step
}

var latenesses = []lateness{
	{"gpu", func(m *actor, d time.Duration) {
		if m.host < forever {
			m.gpu = max(m.gpu, m.host) + int64(d)
		}
	}, true},
	{"host", func(m *actor, d time.Duration) { m.spend(d) }, false},
	{"copy", func(m *actor, d time.Duration) {
		m.note(entry{kind: wire.EventCopying, id: 1000})
		m.spend(d)
		m.note(entry{kind: wire.EventCopied, id: 1000})
	}, false},
	{"quota", func(m *actor, d time.Duration) {
		m.note(entry{kind: wire.EventHeld})
		m.spend(d)
		m.note(entry{kind: wire.EventReleased})
	}, false},
}

// slow lets each actor be late by a part of a step.
func (w *world) slows(l lateness, part func(m *actor) float64) {
	last := map[*actor]int{}
	w.before = func(op int, m *actor) {
		by := part(m) * float64(w.step)
		if l.all {
			l.late(m, time.Duration(by/float64(w.launches+w.buckets+w.layers)))
		} else if op < last[m] {
			l.late(m, time.Duration(by))
		}
		last[m] = op
	}
}

// settle lets the job train until its steps are known, and a race may have begun.
func (w *world) settle() { w.goesOn(max(30*time.Second, 60*w.step)) }

// goesOn lets the job train for some time.
func (w *world) goesOn(d time.Duration) {
	for began := w.h.at; w.h.at-began < int64(d); {
		w.train()
	}
}

// straggles lets a rank be late by a part, and returns what is told of it, and after what time; nil: nothing.
func (w *world) straggles(l lateness, by float64, limit time.Duration) (told []wire.StragglerStats, after time.Duration) {
	m := w.members[w.IntN(w.here)]
	w.slows(l, func(who *actor) float64 {
		if who == m {
			return by
		}
		return 0
	})
	began := w.h.at
	for len(w.late) == 0 && time.Duration(w.h.at-began) < limit {
		w.train()
	}
	for _, s := range w.late {
		if s.PID != m.r.pid || s.Rank != m.index {
			s.Cause = "wrong"
		}
		told = append(told, s)
	}
	return told, time.Duration(w.h.at - began)
}

// TestStragglers is a small part of the world: a straggler is named with its
// cause, by two ranks too, and no longer once it is as fast as the others.
func TestStragglers(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	for _, c := range []struct {
		program int
		lateness
	}{{0, latenesses[0]}, {0, latenesses[1]}, {11, latenesses[0]}, {11, latenesses[2]}, {2, latenesses[3]}} {
		w := newWorld(t, programs[c.program], 3)
		w.settle()
		fixture.Equal(t, len(w.late), 0, "%s: %+v before", w.name, w.late)
		told, after := w.straggles(c.lateness, 0.2, time.Minute)
		fixture.If(t, len(told) != 1 || told[0].Cause != c.cause || told[0].Lost < 0.1 || after < 20*time.Second,
			"%s, %s: %+v after %v", w.name, c.cause, told, after)
		w.before = nil
		w.goesOn(40 * time.Second)
		fixture.Equal(t, len(w.late), 0, "%s, %s: %+v after it got on", w.name, c.cause, w.late)
	}
}

// TestRankOfStraggler: a rank that was found in a small communicator only has the
// number that it has in the largest one.
func TestRankOfStraggler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, programs[4], 5) // not the first pair
	w.settle()
	told, _ := w.straggles(latenesses[0], 0.3, time.Minute)
	for _, r := range w.h.Observer.races {
		for _, x := range r.runners {
			x.named = x.named && x.ranks == 2
		}
	}
	if got := w.h.Observer.Stragglers(); len(told) != 1 || len(got) != 1 || got[0].Rank != told[0].Rank || told[0].Rank < 2 {
		t.Errorf("%+v in all communicators, %+v in the smallest", told, got)
	}
}

// TestStrideOfCallsAhead: what a rank waits in the collectives of a step does not
// depend on how many it calls before the GPU comes to them.
func TestStrideOfCallsAhead(t *testing.T) {
	at := func(steps, called, done, measured uint64) (r record) {
		r.steps = steps
		r.in[0] = wire.Communicator{ID: 1, Entered: called, Ended: done, Measured: measured, MeasuredNS: measured * 1e7}
		return r
	}
	for _, c := range []struct{ begin, end record }{
		{at(1, 20, 20, 20), at(2, 60, 40, 40)},   // one step ahead at the end,
		{at(1, 40, 20, 20), at(2, 40, 40, 40)},   // or at the beginning
		{at(1, 20, 20, 5), at(11, 220, 220, 55)}, // each fourth is measured
	} {
		if s := c.end.since(&c.begin); math.Abs(s.collecting-0.2) > 1e-9 {
			t.Errorf("%d to %d calls, %d to %d done: %.3f s in a step, want 0.2", c.begin.in[0].Entered, c.end.in[0].Entered,
				c.begin.in[0].Ended, c.end.in[0].Ended, s.collecting)
		}
	}
}

// TestTurnsAreNoStraggler lets ranks be slow one after the other, and differ by 3 % for good.
func TestTurnsAreNoStraggler(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	w := newWorld(t, programs[0], 4)
	w.told = func(s wire.StragglerStats) { t.Errorf("%+v", s) }
	w.slows(latenesses[0], func(m *actor) float64 {
		if int(w.h.at/9e9)%w.here == m.index {
			return 0.2
		}
		return 0.03 * float64(m.index%2)
	})
	w.settle()
	w.goesOn(5 * time.Minute)
}

// TestThrottledStraggler: what is true of a straggler's GPU and not of its peers' is the cause.
func TestThrottledStraggler(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	for want, evidence := range map[string]func(uuid string, pid int) Evidence{
		"thermal": func(uuid string, _ int) Evidence { return Evidence{Power: true, Thermal: uuid == "GPU-5"} },
		"gpu":     func(string, int) Evidence { return Evidence{Power: true, Thermal: true} },
	} {
		w := newWorld(t, programs[0], 5)
		w.h.Observer.Evidence = evidence
		w.settle()
		w.slows(latenesses[0], func(m *actor) float64 { return 0.15 * float64(truth(m.index == 5)) })
		w.goesOn(time.Minute)
		fixture.If(t, len(w.late) != 1 || w.late[0].Rank != 5 || w.late[0].Cause != want,
			"%+v, want rank 5 and %s", w.late, want)
	}
}

// TestPausesAreCounted: what a collective takes beyond a step is the pause of another rank.
func TestPausesAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, programs[0], 6)
	w.settle()
	w.members[0].does('w', 20*time.Second)
	w.trains(100)
	all, _ := w.h.Observer.Look(func(int) string { return "job" })
	for i, s := range all {
		if paused := s.Communicators[0].Paused; i == 0 && paused > 0 || i > 0 && (paused < 19 || paused > 20.5) {
			t.Errorf("rank %d waited %.1f s for rank 0", i, paused)
		}
	}
	fixture.Equal(t, len(w.late), 0, "%+v", w.late)
}
