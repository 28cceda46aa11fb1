package schedule

import (
	"slices"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// Shares cover whole tenths of a second, at most ten seconds of them.
func TestShares(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{Weight: 3}, "a")
	d.join(Share{}, "b")
	d.want("a", "b")
	d.decide()
	if a, due := d.Shares("a", time.Second); a != 0 || due != 0 {
		t.Errorf("before a tenth of a second: %v of %v", a, due)
	}
	d.pass(50 * ms)
	for d.at < 12*time.Second {
		for _, name := range []string{"a", "b"} {
			if d.find(name).drains {
				d.drain(name)
			}
		}
		d.pass(ms)
	}
	for _, c := range []struct {
		name   string
		window time.Duration
		want   float64
	}{{"a", time.Second, 0.75}, {"b", time.Second, 0.25}, {"a", 10 * time.Second, 0.75}, {"b", time.Hour, 0.25},
		{"a", 199 * ms, 0.75}} {
		a, due := d.Shares(c.name, c.window)
		fixture.If(t, a < c.want-0.12 || a > c.want+0.12 || due < c.want-1e-6 || due > c.want+1e-6,
			"%s over %v: %v of %v", c.name, c.window, a, due)
	}
	for _, c := range []struct {
		name   string
		window time.Duration
	}{{"nobody", time.Second}, {"a", 99 * ms}, {"a", 0}, {"a", -time.Second}} {
		a, due := d.Shares(c.name, c.window)
		fixture.If(t, a != 0 || due != 0, "%s over %v: %v of %v", c.name, c.window, a, due)
	}
}

// The slots of a ring are cleared as they begin, however much time passes.
func TestSharesForget(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{9 * time.Second, 11 * time.Second, time.Hour} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{Limit: 0.999}, "a")
		d.want("a")
		d.decide()
		for range 90 {
			d.pass(10 * ms)
			d.Report(d.at, "a", Usage{}) // it is present
		}
		if a, due := d.Shares("a", time.Second); a < 0.9 || a > 1 || due < 0.99 || due > 1 {
			t.Errorf("%v of %v", a, due)
		}
		d.rest("a")
		d.decide()
		d.at += pause
		d.Look(d.at)
		a, due := d.Shares("a", 10*time.Second)
		past := pause > 10*time.Second
		fixture.If(t, past != (a == 0) || past != (due == 0), "after %v: %v of %v", pause, a, due)
	}
}

// A slot has the time that was served in it, neither more nor less.
func TestSlots(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{Limit: 0.9}, "a")
	d.want("a")
	d.decide()
	a := d.find("a")
	a.bucket = time.Hour
	d.Look(100 * ms)
	if s := a.past[0]; s.served != 90*ms || s.due != 90*ms { // the latest 10 ms can still be taken back
		t.Errorf("%+v", s)
	}
	d.Look(100*ms + 1)
	s := a.past[1]
	fixture.If(t, s.served != 1 || s.due != 0, "%+v", s)
	for at, want := range map[time.Duration]int{-1: 0, 0: 0, 1: 0, slotTime: 0, slotTime + 1: 1, 2 * slotTime: 1,
		slots*slotTime + 1: slots} {
		fixture.Equal(t, index(at), want, "%v is of slot", at)
	}
	d.Look(slots * slotTime)
	fixture.Equal(t, a.past[0].served, 90*ms, "served")
	d.Look(slots*slotTime + 1)
	fixture.Equal(t, a.past[0].served, 1, "served")
}

// Shares cover at most ten seconds, and all of them if they are there.
func TestSharesOfTenSeconds(t *testing.T) {
	for at, want := range map[time.Duration]float64{
		300 * ms: 1, 10 * time.Second: 1, 10100 * ms: 0.99, 15 * time.Second: 0.5, 19900 * ms: 0.01, 19999 * ms: 0.01,
		20 * time.Second: 0,
	} {
		d := newDesk(t, Config{Turns: true}, 1)
		d.join(Share{}, "a")
		d.want("a")
		d.decide()
		if d.at = min(at, 10*time.Second); at > d.at {
			d.rest("a")
		}
		d.Look(at)
		// its last 10 ms are booked late
		if actual, due := d.Shares("a", time.Hour); !near(due, want) || actual < want-0.04 || actual > want+0.002 {
			t.Errorf("at %v: %v of %v, not of %v", at, actual, due, want)
		}
	}
}

// A long time without a look is booked in its own slots, and as fast as a short one.
func TestSlotsOfLongTimes(t *testing.T) {
	for _, long := range []time.Duration{300 * ms, 2 * time.Second, 10 * time.Second, 10100 * ms, 20 * time.Second,
		100 * 365 * 24 * time.Hour} {
		d := newDesk(t, Config{Turns: true}, 1)
		d.join(Share{Weight: 3}, "a")
		d.join(Share{}, "b")
		d.want("a", "b")
		d.decide()
		d.Look(long)
		for i := range min(100, int(long/slotTime)) {
			s := d.find("a").past.slot(long - time.Duration(i)*slotTime)
			if s.served < 90*ms || s.served > 100*ms || off(s.due, 75*ms) {
				t.Fatalf("of %v in the slot before the last %d: %+v", long, i, *s)
			}
		}
		if a, due := d.Shares("a", 200*ms); a < 0.9 || a > 1 || !near(due, 0.75) {
			t.Errorf("after %v, the tenant's share is %v of %v", long, a, due)
		}
	}
}

// What is told of a past time is booked evenly over it, as far as it is remembered.
func TestSpread(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	a := d.find("a")
	d.Look(time.Minute)
	for what, c := range map[string]struct {
		from, to time.Duration   // before now
		want     []time.Duration // served in the last slots
	}{
		"a moment":    {10 * ms, 0, []time.Duration{time.Second, 0}},
		"no time":     {0, 0, []time.Duration{0, 0}},
		"two slots":   {150 * ms, 50 * ms, []time.Duration{500 * ms, 500 * ms, 0}},
		"four slots":  {350 * ms, 0, []time.Duration{time.Second * 2 / 7, time.Second * 2 / 7, time.Second * 2 / 7, time.Second / 7, 0}},
		"long":        {20 * time.Second, 0, slices.Repeat([]time.Duration{5 * ms}, 100)},
		"long, late":  {20 * time.Second, 9900 * ms, append(make([]time.Duration, 99), time.Second/101)},
		"long before": {20 * time.Second, 10 * time.Second, make([]time.Duration, slots)},
	} {
		a.past = history{}
		a.spread(time.Minute-c.from, time.Minute-c.to, time.Second, 2*time.Second)
		for i, want := range c.want {
			if s := a.past.slot(time.Minute - time.Duration(i)*slotTime); off(s.served, want) || off(s.due, 2*want) {
				t.Errorf("%s: %d slots ago %+v, not %v", what, i, *s, want)
			}
		}
	}
}

func TestUnknown(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	if d.Stats("a") != (Stats{}) || d.Lag("a") != 0 || d.State("a") != (State{Mode: Pause}) || d.Wants("a") {
		t.Error("an unknown tenant has a state")
	}
	d.Want(0, "a")
	d.Rest(0, "a", Usage{Launched: 1})
	d.Drained(0, "a", Usage{Launched: 1})
	d.Report(0, "a", Usage{Launched: 1})
	d.Change(0, "a", Share{Held: true})
	d.Leave(0, "a")
	d.decide()
	fixture.If(t, d.wake != 0 || len(d.tenants) != 0 || d.Changed(), "to be called at %v", d.wake)
	d.join(Share{}, "a", "b")
	d.want("b")
	fixture.If(t, d.Wants("a") || !d.Wants("b"), "Wants is wrong: only b wants the GPU")
}

// Statistics include the current wait.
func TestWaiting(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().pass(3 * ms)
	s := d.Stats("b")
	fixture.If(t, s.Waited != 3*ms || s.Waits != 0, "%+v", s)
	d.rest("b") // it gives up
	s = d.Stats("b")
	fixture.If(t, s.Waited != 3*ms || s.Waits != 1, "%+v", s)
	d.pass(3 * ms)
	s = d.Stats("b")
	fixture.If(t, s.Waited != 3*ms || s.Waits != 1, "%+v", s)
	d.rest("a") // it does not wait
	s = d.Stats("a")
	fixture.If(t, s.Waited != 0 || s.Waits != 1 || s.Turns != 1, "%+v", s)
}

// A wait is late beyond the objective, not counting time at its own limit.
func TestLate(t *testing.T) {
	for _, c := range []struct {
		most time.Duration
		late uint64
	}{{0, 0}, {5 * ms, 0}, {5*ms - 1, 1}} {
		d := newDesk(t, Config{Turns: true}, 1)
		d.join(Share{}, "a")
		d.want("a")
		d.decide().pass(20 * ms)
		d.join(Share{Wait: c.most}, "b")
		d.want("b")
		if d.decide(); c.most == 0 { // only a hurried tenant interrupts
			d.pass(5 * ms)
		} else if d.shows("pp"); true {
			d.pass(5 * ms)
		}
		d.rest("a")
		d.decide()
		s := d.Stats("b")
		fixture.If(t, s.Late != c.late || s.Waits != 1 || d.State("b").Mode != Run, "%v: %+v", c.most, s)
	}
	d := newDesk(t, Config{}, 1)
	d.join(Share{Wait: 5 * ms, Limit: 0.1}, "a")
	d.want("a")
	for d.decide(); d.Stats("a").Waits < 2; {
		d.drain("a")
		d.pass(ms)
	}
	if s := d.Stats("a"); s.Late != 0 || s.Waited < 40*ms || s.Throttled < 40*ms {
		t.Errorf("%+v", s)
	}
}

// Throttling before a wait's begin does not count for the wait, and no wait counts twice.
func TestLateBesideLimit(t *testing.T) {
	for _, c := range []struct {
		most, wait, before, during time.Duration
		late                       uint64
	}{
		{5 * ms, 5 * ms, 0, 0, 0}, {5 * ms, 6 * ms, 0, 0, 1}, {5 * ms, 6 * ms, 100 * ms, 0, 1},
		{5 * ms, 6 * ms, 100 * ms, ms, 0},
		{5 * ms, 6*ms + 1, 100 * ms, ms, 1}, {1, 1, 0, 0, 0}, {1, 2, 0, 0, 1}, {0, time.Second, 0, 0, 0},
	} {
		d := newDesk(t, Config{}, 1)
		a := ready(d, "a", Share{Wait: c.most})
		d.GPU.now, a.stats.Throttled = time.Second, c.before
		d.GPU.wait(a)
		d.GPU.now += c.wait
		a.stats.Throttled += c.during
		for range 2 {
			if d.waited(a); a.stats.Waited != c.wait || a.stats.Late != c.late {
				t.Errorf("%+v: %+v", c, a.stats)
			}
		}
	}
}
