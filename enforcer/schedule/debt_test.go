package schedule

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A limit's windows hold whole turns only: the longer one was, the later is the
// next.
func TestAgain(t *testing.T) {
	for spent, want := range map[time.Duration]time.Duration{0: 0, 400 * ms: 20 * time.Second / 13,
		2700 * ms: 10 * time.Second, 2700*ms + 1: 20 * time.Second, 5400 * ms: 20 * time.Second, time.Minute: 20 * time.Second} {
		d := newDesk(t, Config{}, 1)
		a := ready(d, "a", Share{Limit: 0.25})
		a.opened, d.GPU.now = time.Second, time.Second
		a.dry, a.bucket = true, 20*ms
		if a.pay(spent); a.bucket != 20*ms-spent || a.again() != time.Second+want {
			t.Errorf("%v spent: again at %v, %v left", spent, a.again(), a.bucket)
		}
		a.bucket = 20 * ms
		if at := d.GPU.wake(); at != max(a.again(), time.Second+10*us) {
			t.Errorf("%v spent: to be called at %v", spent, at)
		}
		for _, early := range []time.Duration{1, 0} {
			d.GPU.now = a.again() - early
			if d.age(a, 0); a.dry != (early > 0) {
				t.Errorf("%v spent: dry %v at %v", spent, a.dry, d.GPU.now)
			}
		}
		if d.open(a, Run); a.spent != 0 {
			t.Errorf("of the turn before %v", a.spent)
		}
		free := ready(d, "b", Share{})
		if free.pay(spent); free.bucket != 0 || free.spent != 0 {
			t.Errorf("who has no limit paid %v", free.spent)
		}
	}
}

// Who let others wait for its drain leaves the GPU to them until that is made up
// for, also while they rest for a moment.
func TestOwes(t *testing.T) {
	for what, c := range (changes{
		"wants":          {func(d *desk, a, b *tenant) {}, true},
		"rests":          {func(d *desk, a, b *tenant) { b.wants, b.rested = false, d.at-linger+1 }, true},
		"rests for long": {func(d *desk, a, b *tenant) { b.wants, b.rested = false, d.at-linger }, false},
		"made up for":    {func(d *desk, a, b *tenant) { a.lag = 0 }, false},
		"both do":        {func(d *desk, a, b *tenant) { b.lag, b.overran = -1, late }, false},
		"dry":            {func(d *desk, a, b *tenant) { b.dry = true }, false},
		"light":          {func(d *desk, a, b *tenant) { b.burst, b.duty, b.began = ms, 0.1, d.at }, false},
		"idle":           {func(d *desk, a, b *tenant) { b.share.Class = Idle }, false},
		"both idle":      {func(d *desk, a, b *tenant) { a.share.Class, b.share.Class = Idle, Idle }, true},
	}) {
		d, a, b := pair(t)
		d.GPU.now, a.lag, a.overran = d.at, -1, late
		c.change(d, a, b)
		if a.owes(b) != c.want || a.unit.fits() == c.want || b.share.Class == Normal && b.owes(a) && what != "both do" {
			t.Errorf("%s: owes %v, fits %v", what, a.owes(b), a.unit.fits())
		}
	}
}

// The time in which a drain overruns is a debt, as much as it takes: half of it,
// or what the other one leaves if that has less.
func TestOverrunIsOwed(t *testing.T) {
	for what, c := range map[string]struct {
		change func(a, b *tenant)
		want   time.Duration
	}{
		"equal":        {func(a, b *tenant) { b.pace.beside = rate{} }, 500 * ms},
		"left":         {func(a, b *tenant) { besides(b, 0.25) }, 750 * ms},
		"more":         {func(a, b *tenant) { besides(b, 0.9) }, 500 * ms},
		"known":        {func(a, b *tenant) { besides(b, 0.25); besides(a, 0.4) }, 400 * ms},
		"in time":      {func(a, b *tenant) { besides(b, 0.25); a.settled = false }, 500 * ms},
		"is mute":      {func(a, b *tenant) { besides(b, 0.25); a.mute = true }, 750 * ms},
		"is all there": {func(a, b *tenant) { b.state.Mode = Pause }, time.Second},
	} {
		d, a, b := pair(t)
		a.drains, a.settled, a.pace.beside, b.state.Mode = true, true, rate{}, Run
		c.change(a, b)
		d.serve(time.Second)
		overran, blind := c.want, time.Duration(0)
		if !a.settled {
			overran = 0
		}
		if w := a.pace.window; a.mute {
			blind = c.want
			fixture.Equal(t, w.solo+w.beside, 0, "%s: … are in its window", what)
		}
		if off(a.lag, -c.want) || off(a.overran, overran) || off(a.blind, blind) {
			t.Errorf("%s: lag %v, overran %v, blind %v", what, a.lag, a.overran, a.blind)
		}
		if d.forget(); a.settled && off(a.lag, -c.want) {
			t.Errorf("%s: of it %v is remembered", what, a.lag)
		}
	}
}

// What a mute tenant was charged for more than its launches is taken back when
// it tells of them, and no more than that.
func TestExcuse(t *testing.T) {
	for what, c := range map[string]struct {
		lag, bucket     time.Duration
		u               Usage
		cost            float64
		wantLag, wantOf time.Duration
	}{
		"nothing":      {-time.Second, -time.Second, Usage{Ago: 1}, 0.1, -600 * ms, -600 * ms},
		"some":         {-time.Second, -time.Second, Usage{Launched: 3}, 0.1, -900 * ms, -900 * ms},
		"more":         {-time.Second, -time.Second, Usage{Launched: 5}, 0.1, -time.Second, -time.Second},
		"long ones":    {-time.Second, -time.Second, Usage{Launched: 3, Longest: 100 * ms}, 0.01, -900 * ms, -900 * ms},
		"is not there": {-time.Second, -time.Second, Usage{}, 0.1, -time.Second, -time.Second},
		"made up for":  {-100 * ms, 0, Usage{Ago: 1}, 0.1, 0, 50 * ms},
		"is owed":      {ms, 0, Usage{Ago: 1}, 0.1, ms, 50 * ms},
	} {
		d := newDesk(t, Config{}, 1)
		a := ready(d, "a", Share{Limit: 0.5})
		a.pace.solo, a.blind, a.lag, a.bucket = rate{1, c.cost}, 400*ms, c.lag, c.bucket
		d.learn(a, c.u)
		if off(a.lag, c.wantLag) || off(a.bucket, c.wantOf) || (a.blind == 0) != (c.u != Usage{}) {
			t.Errorf("%s: lag %v, bucket %v, blind %v", what, a.lag, a.bucket, a.blind)
		}
		if taken := -a.bill.served; a.bill.charged != a.bill.served || c.lag == -time.Second && off(taken, a.lag-c.lag) {
			t.Errorf("%s: %v is taken back", what, taken)
		}
	}
}
