package schedule

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// The tenants of a class divide the time by weight.
func TestParts(t *testing.T) {
	type shares = map[string]Share
	for what, c := range map[string]struct {
		shares shares
		want   map[string]float64
	}{
		"by weight": {shares{"a": {Weight: 3}, "b": {}}, map[string]float64{"a": 0.75, "b": 0.25}},
		"idle has none": {shares{"a": {Class: Idle}, "b": {}, "c": {Class: Idle}},
			map[string]float64{"a": 0, "b": 1, "c": 0}},
		"idle comes after": {shares{"a": {}, "b": {Class: Idle, Weight: 9}, "c": {}},
			map[string]float64{"a": 0.5, "b": 0, "c": 0.5}},
		"all are idle": {shares{"a": {Class: Idle}, "b": {Class: Idle}}, map[string]float64{"a": 0.5, "b": 0.5}},
		"realtime": {shares{"a": {Class: Realtime, Limit: 0.9}, "b": {}},
			map[string]float64{"a": 0.5, "b": 0.5}},
		"limit": {shares{"a": {Limit: 0.1}, "b": {}}, map[string]float64{"a": 0.1, "b": 0.5}},
		"held":  {shares{"a": {Held: true}, "b": {}}, map[string]float64{"a": 0, "b": 1}},
	} {
		d := newDesk(t, Config{}, 1)
		for name, s := range c.shares {
			d.join(s, name)
			d.want(name)
		}
		d.decide()
		for name, want := range c.want {
			if got := d.find(name).part; !near(got, want) {
				t.Errorf("%s: %s has %v, not %v", what, name, got, want)
			}
		}
	}
}

// A tenant still counts for a moment after its last wish for the GPU.
func TestLingers(t *testing.T) {
	d := two(t, Share{}, Share{})
	d.rest("b")
	for ago, want := range map[time.Duration]float64{0: 0.5, 100*ms - 1: 0.5, 100 * ms: 0, time.Second: 0} {
		d.find("b").rested, d.GPU.now = time.Minute-ago, time.Minute
		if d.share(); d.find("b").part != want {
			t.Errorf("%v later: %v", ago, d.find("b").part)
		}
	}
	d = two(t, Share{}, Share{})
	d.find("b").lag = -20 * ms // so that the schedule remembers it
	d.Leave(d.at, "b")
	if d.decide(); d.find("a").part != 1 || d.find("b").part != 0 {
		t.Errorf("the tenant that left has a part of %v", d.find("b").part)
	}
	d = two(t, Share{}, Share{})
	d.rest("b")
	d.Look(d.at + 100*ms) // without a decision
	if d.Look(d.at + 101*ms); d.find("a").part != 1 {
		t.Errorf("a's part is %v while the other rests for good", d.find("a").part)
	}
	d.find("b").ever, d.find("b").rested = false, d.GPU.now
	d.share()
	fixture.If(t, d.find("b").part != 0, "a tenant that never wanted the GPU counts")
}

// Time that passes is booked as due and as served.
func TestBooks(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{Weight: 3}, "a")
	d.join(Share{}, "b")
	d.want("a", "b")
	d.decide().shows("rp")
	d.Look(4 * ms)
	a, b := d.Lag("a"), d.Lag("b")
	fixture.If(t, a != -ms || b != ms, "a is owed %v, b %v", a, b)
	d.Look(20 * ms) // all but the latest time counts
	if a, b := d.Stats("a"), d.Stats("b"); a.Served != 10*ms || a.Charged != 10*ms || a.Wanted != 10*ms ||
		b.Served != 0 || b.Charged != 0 || b.Wanted != 10*ms {
		t.Errorf("a %+v, b %+v", a, b)
	}
	h := d.System()
	fixture.If(t, h.Handover != 0 || h.Together != 0, "%+v", h)
}

// A tenant's debt and credit are bounded.
func TestLagIsBounded(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b", "c")
	d.want("a", "b")
	d.decide()
	for _, c := range []struct {
		name           string
		a, b, gone     time.Duration
		wantA, wantB   time.Duration
		wantC, elapses time.Duration
	}{
		{"little", -20 * ms, 20 * ms, 0, -20 * ms, 20 * ms, 0, 1},
		{"as far as can be", -30 * ms, 20 * ms, -5 * ms, -30 * ms, 20 * ms, -5 * ms, 1},
		{"further", -40 * ms, 20 * ms, -5 * ms, -30 * ms, 20 * ms, -5 * ms, 1},
		{"who is gone", -20 * ms, 20 * ms, -50 * ms, -20 * ms, 20 * ms, -30 * ms, 1},
		{"both", -40 * ms, -15 * ms, -50 * ms, -30 * ms, -15 * ms, -30 * ms, 1},
		{"what nobody had", 10 * ms, 30 * ms, -5 * ms, 0, 20 * ms, -5 * ms, 1},
		{"who sleeps has it back", 0, 20 * ms, -5 * ms, -10 * ms, 30 * ms, 0, 20 * ms},
		{"owed", 0, time.Hour, 0, 0, 50 * ms, 0, 1},
	} {
		d.find("a").lag, d.find("b").lag, d.find("c").lag = c.a, c.b, c.gone
		if d.find("c").sessions = 1; c.name == "who is gone" {
			d.find("c").sessions = 0
		}
		d.Look(d.GPU.now + c.elapses)
		if a, b, gone := d.Lag("a"), d.Lag("b"),
			d.Lag("c"); off(a, c.wantA) || off(b, c.wantB) || c.name != "both" && off(gone, c.wantC) {
			t.Errorf("%s: a %v, b %v, c %v", c.name, a, b, gone)
		}
	}
}

func off(got, want time.Duration) bool { return max(got-want, want-got) > 2 }

// forget subtracts the smallest lag among the tenants that want the GPU and share it: that is time which nobody had.
func TestWhatNobodyHad(t *testing.T) {
	for what, c := range map[string]struct {
		change  func(a, b, c *tenant)
		a, b, c time.Duration
	}{
		"three":       {func(a, b, c *tenant) {}, 8 * ms, 18 * ms, 0},
		"one rests":   {func(a, b, c *tenant) { c.wants = false }, 0, 10 * ms, 2 * ms},
		"is ahead":    {func(a, b, c *tenant) { c.wants, c.lag = false, -ms }, 0, 10 * ms, -ms},
		"one is held": {func(a, b, c *tenant) { c.part = 0 }, 0, 10 * ms, 2 * ms},
		"only one":    {func(a, b, c *tenant) { a.wants, c.part = false, 0 }, 10 * ms, 20 * ms, 2 * ms},
		"a moment":    {func(a, b, c *tenant) { c.lag = 1 }, 10*ms - 1, 20*ms - 1, 0},
		"nothing":     {func(a, b, c *tenant) { c.lag = 0 }, 10 * ms, 20 * ms, 0},
	} {
		d := newDesk(t, Config{}, 1)
		x, y, z := ready(d, "a", Share{}), ready(d, "b", Share{}), ready(d, "c", Share{})
		x.lag, y.lag, z.lag = 10*ms, 20*ms, 2*ms
		x.part, y.part, z.part = 0.3, 0.3, 0.4
		c.change(x, y, z)
		if d.forget(); x.lag != c.a || y.lag != c.b || z.lag != c.c {
			t.Errorf("%s: a is owed %v, b %v, c %v", what, x.lag, y.lag, z.lag)
		}
	}
}

// A sleeping tenant earns nothing, and keeps its debt.
func TestSleepEarnsNothing(t *testing.T) {
	for _, c := range []struct{ sleep, lag, want time.Duration }{
		{100 * ms, 5 * ms, 5 * ms}, {100*ms + 1, 5 * ms, 0}, {time.Hour, -5 * ms, -5 * ms}, {ms, -5 * ms, -5 * ms},
	} {
		d := newDesk(t, Config{Turns: true}, 1)
		d.join(Share{}, "a", "b")
		d.want("a")
		d.rest("a")
		d.find("a").lag = c.lag
		d.at = c.sleep
		d.Look(d.at)
		d.find("a").lag = c.lag
		if d.want("a"); d.Lag("a") != c.want {
			t.Errorf("after %v: %v, not %v", c.sleep, d.Lag("a"), c.want)
		}
	}
}

// Time that was booked while the tenant did nothing is taken back.
func TestAgo(t *testing.T) {
	for _, c := range []struct{ ago, served time.Duration }{{0, 8 * ms}, {3 * ms, 5 * ms}, {time.Hour, 0},
		{-ms, 8 * ms}} {
		d := newDesk(t, Config{Turns: true}, 1)
		d.join(Share{Weight: 3}, "a")
		d.join(Share{}, "b")
		d.want("a", "b")
		d.decide()
		d.at = 8 * ms
		d.Rest(d.at, "a", Usage{Ago: c.ago})
		s := d.Stats("a")
		if s.Served != c.served || s.Charged != c.served || s.Wanted != c.served || d.Lag("a") != -c.served/4 {
			t.Errorf("%v ago: %+v, lag %v", c.ago, s, d.Lag("a"))
		}
		if a := d.find("a"); a.burst != c.served || a.rested != c.served || a.wants {
			t.Errorf("%v ago: a burst of %v until %v", c.ago, a.burst, a.rested)
		}
		d.Rest(d.at, "a", Usage{Ago: ms}) // it rests already
		is := d.Stats("a")
		fixture.If(t, is.Served != s.Served || d.find("a").rested != c.served, "again: %+v", is)
	}
}

// Beside others the correction follows the booked amounts.
func TestAgoBeside(t *testing.T) {
	d := two(t, Share{}, Share{})
	d.shows("rr")
	d.at = 8 * ms
	d.Look(d.at)
	rate := d.find("a").pace.rateOr(0)
	if lag := time.Duration((0.5 - rate) * 8e6); off(d.Lag("a"), lag) {
		t.Errorf("lag %v, not %v", d.Lag("a"), lag)
	}
	d.Rest(d.at, "a", Usage{Ago: 4 * ms, Launched: uint64(rate * 4e6 / 1e5)})
	got, want := d.Stats("a").Served, time.Duration(rate*4e6)
	fixture.If(t, off(got, want) || off(d.Stats("a").Wanted, 4*ms), "%+v, not %v", d.Stats("a"), want)
	fixture.Equal(t, d.System().Together, 8*ms, "together")
}

// A limit's bucket has a size, a moment at which it is empty, and a moment at which it is full enough again.
func TestBucket(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	for _, c := range []struct {
		limit        float64
		brim, enough time.Duration
	}{{0.05, 5 * ms, 2500 * us}, {0.3, 30 * ms, 7 * ms}, {0.5, 50 * ms, 5 * ms}, {0.9, 90 * ms, ms}, {1, 100 * ms, 0}} {
		x := &tenant{share: Share{Limit: c.limit}}
		b, e := d.brim(x), d.enough(x)
		fixture.If(t, off(b, c.brim) || off(e, c.enough), "%v: %v and %v", c.limit, b, e)
	}
	d.join(Share{Limit: 0.5}, "a")
	d.want("a")
	d.decide().shows("r")
	fixture.If(t, d.State("a").End != 10*ms || d.wake != 10*ms, "%+v, to be called at %v", d.State("a"), d.wake)
	for d.State("a").Mode == Run {
		d.at = d.wake
		d.decide()
	}
	fixture.If(t, d.at < 9800*us || d.at > 10*ms, "its limit was used up at %v", d.at)
	d.drain("a")
	dry := d.at
	d.decide()
	d.pass(d.wake - us - d.at).shows("p")
	d.pass(us).shows("r")
	fixture.If(t, d.at-dry < 9700*us || d.at-dry > 10100*us, "let run again after %v", d.at-dry)
	s := d.Stats("a")
	fixture.If(t, off(s.Throttled, d.at-dry), "%+v", s)
	d.rest("a")
	d.at += time.Hour
	if d.Look(d.at); d.find("a").bucket != 50*ms {
		t.Errorf("it holds %v", d.find("a").bucket)
	}
}

// A change of the limit starts with enough in the bucket, and ends the old limit's throttling.
func TestChangeLimit(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	d.want("a")
	d.decide().pass(time.Second).shows("o")
	d.Change(d.at, "a", Share{Limit: 0.5})
	if d.decide().shows("r"); d.find("a").bucket != 5*ms {
		t.Errorf("%v", d.find("a").bucket)
	}
	d.find("a").bucket = 40 * ms
	d.Change(d.at, "a", Share{Limit: 0.2})
	fixture.Equal(t, d.find("a").bucket, 20*ms, "the bucket")
	d.find("a").bucket = 0
	d.dirty = true
	d.decide().shows("p")
	fixture.If(t, !d.find("a").dry, "it is not empty")
	d.Change(d.at, "a", Share{})
	d.drain("a")
	d.decide().shows("o")
}

// Limits hold, alone and beside others, and no other GPU time is lost.
func TestLimits(t *testing.T) {
	t.Parallel()
	const long = 4 * time.Second
	for _, limit := range []float64{0.05, 0.3, 0.8} {
		for _, name := range []string{"queue", "steps"} {
			all := alone(t, name).lone
			a := kind(name, 1)
			a.Limit = limit
			w := newWorld(t, false, nil, a)
			w.run(long)
			part := a.rate(begin, long) / all
			t.Logf("%s, limit %.2f: %.3f alone", name, limit, part)
			if part > limit+0.015 || part < limit*0.85 {
				t.Errorf("%s, limit %.2f: %.3f alone", name, limit, part)
			}
			if s := w.gpus[0].g.Stats(name); s.Throttled == 0 ||
				s.Charged > time.Duration((limit+0.015)*float64(long)) {
				t.Errorf("%+v", s)
			}
			a, b := kind(name, 1), kind("queue", 1)
			a.name, b.name, a.Limit = "a", "b", limit
			newWorld(t, false, nil, a, b).run(long)
			part, rest := a.rate(begin, long)/all, b.rate(begin, long)/alone(t, "queue").lone
			t.Logf("%s, limit %.2f: %.3f beside %.3f", name, limit, part, rest)
			if part > limit+0.015 || part < min(limit, 0.5)*0.75 || part+rest < 0.93 {
				t.Errorf("%s, limit %.2f: %.3f beside %.3f", name, limit, part, rest)
			}
		}
	}
}

// The limit bounds a realtime tenant, and the others share the rest.
func TestRealtimeHasNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	const long = 4 * time.Second
	r, a, b := kind("queue", 1), kind("queue", 30), kind("queue", 70)
	r.name, a.name, b.name = "r", "a", "b"
	r.Limit, r.Class = 0.3, Realtime
	newWorld(t, false, nil, a, b, r).run(long)
	all := alone(t, "queue").lone
	part := r.rate(begin, long) / all
	fixture.If(t, part > 0.315 || part < 0.25, "%.3f of the GPU with a limit of 0.3", part)
	part = a.rate(begin, long) / (a.rate(begin, long) + b.rate(begin, long))
	fixture.If(t, part < 0.27 || part > 0.33, "a has %.3f of what the limited tenant leaves, want 0.3", part)
}

// A tenant is light while it wants the GPU briefly and seldom.
func TestLight(t *testing.T) {
	for what, c := range map[string]struct {
		turns      bool
		burst      time.Duration
		duty       float64
		wants      bool
		since, now time.Duration
		light      bool
	}{
		"brief":        {false, 3 * ms, 0.3, false, 0, 0, true},
		"a moment":     {false, 1, 0.3, false, 0, 0, true},
		"never":        {false, 0, 0, false, 0, 0, false},
		"long":         {false, 3*ms + 1, 0.1, false, 0, 0, false},
		"often":        {false, ms, 0.3001, false, 0, 0, false},
		"at work":      {false, ms, 0.1, true, ms, 7 * ms, true},
		"for too long": {false, ms, 0.1, true, ms, 7*ms + 1, false},
		"at rest":      {false, ms, 0.1, false, ms, time.Hour, true},
		"in turns":     {true, ms, 0.1, false, 0, 0, false},
	} {
		d := newDesk(t, Config{Turns: c.turns}, 1)
		x := &tenant{gpu: d.GPU, state: State{Mode: Run}, burst: c.burst, duty: c.duty, wants: c.wants, began: c.since}
		fixture.Equal(t, x.light(c.now), c.light, "%s: light", what)
	}
}

// The duty is the part of the time in which a tenant wants the GPU, over about a second.
func TestDuty(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	for range 200 {
		d.want("a")
		d.Look(d.GPU.now + 5*ms)
		d.Rest(d.GPU.now, "a", Usage{})
		d.Look(d.GPU.now + 15*ms)
		d.at = d.GPU.now
	}
	if duty := d.find("a").duty; duty < 0.2 || duty > 0.3 {
		t.Errorf("%v", duty)
	}
	d.want("a")
	if d.Look(d.at + time.Hour); !near(d.find("a").duty, 1) {
		t.Errorf("%v", d.find("a").duty)
	}
}

// A light tenant gets its time at once. It is no contender, costs the other its
// part of the time, and nobody is paused for it.
func TestLightRunsBeside(t *testing.T) {
	d := two(t, Share{}, Share{})
	b := d.find("b")
	d.rest("b")
	d.decide()
	b.burst, b.duty = ms, 0.1
	d.find("a").owed, d.find("a").lag, b.lag = true, 3*ms, 0
	d.want("b")
	d.decide().shows("rr")
	before := d.Stats("a").Charged + d.find("a").bill.charged
	if d.Look(d.at + 2*ms); b.bill.charged != ms || d.find("a").bill.charged+d.Stats("a").Charged-before != ms ||
		b.lag != 0 {
		t.Errorf("b %+v, lag %v; a %+v", b.bill, b.lag, d.find("a").bill)
	}
	d.Change(d.at, "b", Share{Limit: 0.3})
	was := b.lag
	d.GPU.now = d.at + 2*ms
	d.Look(d.at + 3*ms)
	fixture.If(t, b.lag != was, "lag %v", b.lag)
}

// The time in which a tenant waits for others to drain is counted separately.
func TestHandover(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	for d.decide(); d.State("a").Mode == Run; {
		d.pass(us)
	}
	before := d.System().Handover
	d.pass(2 * ms).shows("pp")
	d.drain("a")
	d.decide().pass(ms).shows("pr")
	h := d.System().Handover - before
	fixture.If(t, before > us || h != 2*ms, "%v, then %v", before, h)
}

// A tenant that wants the GPU briefly and seldom is bound by its limit too.
func TestLimitHoldsForTheLight(t *testing.T) {
	t.Parallel()
	const long = 4 * time.Second
	for _, limit := range []float64{0.05, 0.1} {
		a := &program{name: "a", kernel: ms, count: 1, cpu: 5 * us, gap: 4 * ms}
		a.Limit = limit
		b := kind("queue", 1)
		w := newWorld(t, false, nil, a, b)
		w.run(long)
		part := a.ranks[0].done.Seconds() / long.Seconds()
		t.Logf("limit %.2f: %.3f", limit, part)
		fixture.If(t, part > limit+0.015, "limit %.2f: %.3f", limit, part)
	}
}

// Tenants that run together share the GPU's time in proportion to their known
// pace, but never more than there was. A light tenant has an equal part.
func TestCharge(t *testing.T) {
	for _, c := range []struct {
		rates            []float64 // 0: unknown
		light            int
		charged, served  []time.Duration
		together, bucket time.Duration
	}{
		{[]float64{0}, 0, []time.Duration{12 * ms}, []time.Duration{12 * ms}, 0, 12 * ms},
		{[]float64{0}, 1, []time.Duration{6 * ms, 6 * ms}, []time.Duration{12 * ms, 12 * ms}, 12 * ms, 12 * ms},
		{[]float64{0, 0}, 0, []time.Duration{6 * ms, 6 * ms}, []time.Duration{6 * ms, 6 * ms}, 12 * ms, 6 * ms},
		{[]float64{0.9, 0.6}, 0, []time.Duration{7200 * us, 4800 * us}, []time.Duration{10800 * us, 7200 * us}, 12 * ms,
			10800 * us},
		{[]float64{0.9, 0}, 0, []time.Duration{7714286, 4285714}, []time.Duration{10800 * us, 6 * ms}, 12 * ms,
			10800 * us},
		{[]float64{0.3, 0.3}, 0, []time.Duration{3600 * us, 3600 * us}, []time.Duration{3600 * us, 3600 * us}, 12 * ms,
			3600 * us},
		{[]float64{0.5, 0.5}, 1, []time.Duration{4 * ms, 4 * ms, 4 * ms}, []time.Duration{6 * ms, 6 * ms, 12 * ms},
			12 * ms, 6 * ms},
		{[]float64{0.9, 0.9}, 2, []time.Duration{3 * ms, 3 * ms, 3 * ms, 3 * ms},
			[]time.Duration{10800 * us, 10800 * us, 12 * ms, 12 * ms}, 12 * ms, 10800 * us},
		{nil, 2, []time.Duration{6 * ms, 6 * ms}, []time.Duration{12 * ms, 12 * ms}, 12 * ms, 12 * ms},
	} {
		d := newDesk(t, Config{}, 1)
		var all []*tenant
		for i := range len(c.rates) + c.light {
			name := string(rune('a' + i))
			d.join(Share{Limit: 0.9}, name)
			x := d.find(name)
			x.wants, x.state.Mode, x.bucket = true, Run, 20*ms
			if i >= len(c.rates) {
				x.burst = ms
			} else if x.pace.solo = costs(1); true {
				x.pace.beside = rate{c.rates[i] * 0.2, min(c.rates[i], 0.2)}
				x.pace.beside.launches = c.rates[i] * x.pace.beside.seconds
			}
			all = append(all, x)
		}
		d.serve(12 * ms)
		for i, x := range all {
			charged, served := x.bill.charged+x.stats.Charged, x.bill.served+x.stats.Served
			if off(charged, c.charged[i]) || off(served, c.served[i]) {
				t.Errorf("%v and %d: the %dth is charged %v for %v", c.rates, c.light, i, charged, served)
			}
		}
		if d.system.Together != c.together || off(20*ms-all[0].bucket, c.bucket) {
			t.Errorf("%v and %d: together %v, of the bucket %v", c.rates, c.light, d.system.Together,
				20*ms-all[0].bucket)
		}
	}
}

// A tenant is owed no part of the time in which it rests, is open, or is held.
func TestAge(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*tenant)
		want   time.Duration
	}{
		"wants": {func(x *tenant) {}, 2 * ms},
		"rests": {func(x *tenant) { x.wants = false }, 0},
		"open":  {func(x *tenant) { x.state.Mode = Open }, 0},
		"held":  {func(x *tenant) { x.share.Held = true }, 0},
	} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{}, "a")
		x := d.find("a")
		x.wants, x.part = true, 0.5
		c.change(x)
		d.age(x, 4*ms)
		fixture.If(t, x.lag != c.want || x.bill.wanted != 2*c.want || x.past.slot(0).due != c.want,
			"%s: %v, %+v", what, x.lag, x.bill)
	}
}

// Time makes up for a resting tenant's debt, and takes nothing from a tenant that is owed.
func TestRestMakesUp(t *testing.T) {
	for what, c := range map[string]struct {
		lag    time.Duration
		change func(*tenant)
		want   time.Duration
	}{
		"is ahead":        {-5 * ms, func(x *tenant) {}, -ms},
		"is ahead little": {-2 * ms, func(x *tenant) {}, 0},
		"is even":         {0, func(x *tenant) {}, 0},
		"is owed":         {5 * ms, func(x *tenant) {}, 5 * ms},
		"is open":         {-5 * ms, func(x *tenant) { x.wants, x.state.Mode = true, Open }, -5 * ms},
		"tarries":         {-5 * ms, func(x *tenant) { x.overran, x.gpu.weights = late, 1 }, -3 * ms},
		"is held":         {-5 * ms, func(x *tenant) { x.wants, x.share.Held = true, true }, -5 * ms},
		"tarries alone":   {-10 * ms, func(x *tenant) { x.overran, x.gpu.weights, x.wants, x.part = late, 1, true, 1 }, -2 * ms},
		"others want":     {-10 * ms, func(x *tenant) { x.overran, x.gpu.weights, x.wants, x.part = late, 2, true, 0.5 }, -8 * ms},
		"wants alone":     {-10 * ms, func(x *tenant) { x.gpu.weights, x.wants, x.part = 1, true, 1 }, -6 * ms},
	} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{}, "a")
		x := d.find("a")
		x.lag = c.lag
		c.change(x)
		d.age(x, 4*ms)
		fixture.If(t, x.lag != c.want, "who %s: %v, not %v", what, x.lag, c.want)
	}
}

// Who does not drain has what the other one leaves, as that tells by its launches, and not what it says
// itself. If the other does not tell, it is taken to have half of the time, or less in short slices. It owes
// all of that, if it began beside others.
func TestOverrunIsOwed(t *testing.T) {
	for what, c := range map[string]struct {
		launched  uint64 // by b, which makes 8192 a second
		change    func(a, b *tenant)
		had, owes time.Duration
	}{
		"half":       {4096, func(a, b *tenant) {}, 500 * ms, 500 * ms},
		"little":     {7680, func(a, b *tenant) {}, 62500 * us, 62500 * us},
		"nothing":    {9000, func(a, b *tenant) {}, 0, 0},
		"unknown":    {4096, func(a, b *tenant) { b.pace.solo = rate{} }, 500 * ms, 500 * ms},
		"in slices":  {4096, func(a, b *tenant) { b.pace.solo, a.state.Slice = rate{}, sliceLeast }, 181818182, 181818182},
		"was open":   {6144, func(a, b *tenant) { b.pace.solo, b.pace.steady = rate{}, rate{8192, 1} }, 250 * ms, 250 * ms},
		"from alone": {4096, func(a, b *tenant) { a.crowded = false }, 500 * ms, 180 * ms},
		"much":       {0, func(a, b *tenant) { a.debt, a.lag, a.bucket = debtMost-ms, -debtMost, -debtMost }, debtMost + time.Second, debtMost + 180*ms},
	} {
		d, a, b := pair(t)
		a.drains, a.settled, a.crowded, a.overran, b.state.Mode = true, true, true, 50*ms, Run
		a.share.Limit, b.lag = 0.5, time.Second
		c.change(a, b)
		d.serve(time.Second)
		d.learn(a, Usage{Launched: 1, Longest: ms})
		if what == "much" {
			a.bill.served += debtMost
		}
		if d.learn(b, Usage{Launched: c.launched}); off(a.lag, -c.had) || off(a.bucket, -c.had) || off(a.bill.served+a.stats.Served, c.had) {
			t.Errorf("%s: lag %v, bucket %v, served %v", what, a.lag, a.bucket, a.bill.served+a.stats.Served)
		}
		all := a.bill.charged + a.stats.Charged + b.bill.charged + b.stats.Charged
		fixture.If(t, off(all, time.Second), "%s: %v is charged", what, all)
		d.forget()
		fixture.If(t, off(a.lag, -c.owes) || a.debt > debtMost, "%s: it owes %v", what, a.lag)
		a.lag = 0
		d.forget()
		fixture.If(t, a.debt != 0 || a.overran != 0, "%s: it made up for that, and owes %v", what, a.debt)
	}
	for _, others := range []int{0, 2} { // nobody, or nobody knows who
		d, a, b := pair(t)
		a.drains, a.settled, a.pace, b.wants = true, true, pace{}, false
		for i := range others {
			x := ready(d, string(rune('c'+i)), Share{})
			x.state.Mode = Run
		}
		d.serve(300 * ms)
		fixture.If(t, off(a.lag, -300*ms/time.Duration(1+others)), "beside %d others: lag %v", others, a.lag)
	}
}

// A turn counts as begun beside others if they want the GPU, or did a moment ago.
func TestCrowded(t *testing.T) {
	for rest, want := range map[time.Duration]bool{0: true, linger - 1: true, linger: false} {
		d, a, b := pair(t)
		d.GPU.now, b.wants, b.rested = d.at, rest == 0, d.at-rest
		d.open(a, Run)
		fixture.If(t, a.crowded != want, "the other one rests for %v: %v", rest, a.crowded)
	}
}

// A light tenant has its part of the time however much it gets, and the others have no less for it.
func TestLightHasItsPart(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a", "b")
	a, b := d.find("a"), d.find("b")
	for _, x := range []*tenant{a, b} {
		x.wants, x.state.Mode = true, Run
	}
	b.burst, b.part = ms, 0.25
	if d.serve(4 * ms); b.lag != -ms || b.bill.served != 4*ms || a.lag != -4*ms {
		t.Errorf("a is owed %v, b %v for %v", a.lag, b.lag, b.bill.served)
	}
	if w := a.pace.window; w.solo != 4*ms || w.beside != 0 { // as if it were alone
		t.Errorf("%+v", w)
	}
	if a.bucket != 0 || b.bucket != 0 { // neither has a limit
		t.Errorf("the buckets of tenants without a limit hold %v and %v, want 0", a.bucket, b.bucket)
	}
	if d.serve(16 * ms); a.bill.served != 10*ms || b.bill.served != 10*ms || a.stats.Served != 10*ms ||
		b.stats.Served != 10*ms {
		t.Errorf("the tenants were served %v and %v, want the latest 10 ms each", a.stats.Served, b.stats.Served)
	}
	b.burst = 0 // it is not light any more
	if d.serve(2 * ms); a.pace.window.solo != 20*ms || a.pace.window.beside != 2*ms || a.pace.window.given != ms {
		t.Errorf("%+v", a.pace.window)
	}
}

// If one tenant did nothing in the latest time after all, the other was alone
// in that time and is charged for all of it.
func TestOtherDidNothing(t *testing.T) {
	for _, c := range []struct{ ago, solo, served time.Duration }{
		{0, 0, 7200 * us}, {4 * ms, 4 * ms, 7600 * us}, {8 * ms, 8 * ms, 8 * ms}, {time.Hour, 8 * ms, 8 * ms},
	} {
		d := two(t, Share{}, Share{})
		d.at = 8 * ms
		d.Rest(d.at, "b", Usage{Ago: c.ago})
		a := d.find("a")
		if w := a.pace.window; off(w.solo, c.solo) || off(w.beside, 8*ms-c.solo) || off(w.given, w.beside*9/10) {
			t.Errorf("%v ago: %+v", c.ago, w)
		}
		fixture.If(t, off(a.bill.served, c.served) || off(a.lag, 4*ms-c.served),
			"%v ago: served %v, lag %v", c.ago, a.bill.served, a.lag)
	}
	d := two(t, Share{}, Share{})
	a := d.find("a")
	a.pace.window.solo, a.pace.window.beside, a.pace.window.given = 5*ms, 2*ms, ms
	if a.unshare(4 * ms); a.pace.window.solo != 7*ms || a.pace.window.beside != 0 || a.lag != -ms ||
		a.bill.served != ms {
		t.Errorf("for longer than beside others: %+v, lag %v", a.pace.window, a.lag)
	}
}

// only returns the single running tenant, light ones not counted.
func TestOnly(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b, c := ready(d, "a", Share{}), ready(d, "b", Share{}), ready(d, "c", Share{})
	for what, x := range map[string]struct {
		change func()
		want   *tenant
	}{
		"nobody runs":     {func() {}, nil},
		"a runs":          {func() { a.state.Mode = Run }, a},
		"b runs":          {func() { b.state.Mode = Run }, b},
		"c drains":        {func() { c.drains = true }, c},
		"two":             {func() { a.state.Mode, c.state.Mode = Run, Run }, nil},
		"three":           {func() { a.state.Mode, b.state.Mode, c.state.Mode = Run, Run, Run }, nil},
		"one and a light": {func() { a.state.Mode, b.state.Mode, a.burst = Run, Run, ms }, b},
		"a light one":     {func() { a.state.Mode, a.burst = Run, ms }, nil},
	} {
		k, l, m := *a, *b, *c
		if x.change(); d.only() != x.want {
			t.Errorf("%s: %+v", what, d.only())
		}
		*a, *b, *c = k, l, m
	}
}

// Everything on a bill is counted in the end, to the last nanosecond. Anything else is not taken back.
func TestSettle(t *testing.T) {
	d := two(t, Share{}, Share{})
	a := d.find("a")
	a.bill = bill{1, 1, 1}
	a.settle(1)
	if s := a.stats; s.Served != 0 || s.Charged != 0 || s.Wanted != 0 || a.bill != (bill{1, 1, 1}) {
		t.Errorf("%+v is left of what can be taken back, %+v", a.bill, s)
	}
	a.settle(0)
	if s := a.stats; s.Served != 1 || s.Charged != 1 || s.Wanted != 1 || a.bill != (bill{}) ||
		a.past.slot(0).served != 1 {
		t.Errorf("%+v, left %+v", s, a.bill)
	}
	for charged, want := range map[time.Duration]time.Duration{0: 0, -ms: 0, 1: 1, 3 * ms: 3 * ms, 7 * ms: 5 * ms} {
		b := d.find("b")
		b.bill, b.stats.Charged = bill{charged: charged}, 0
		if b.unserve(5 * ms); max(charged, 0)-max(b.bill.charged, 0)-b.stats.Charged != want ||
			charged <= 0 && b.bill.charged != charged {
			t.Errorf("of %v charged %v and %v are left", charged, b.bill.charged, b.stats.Charged)
		}
	}
}

// A limit is charged for service or for the GPU's time, whichever is more.
func TestLimitPaysForMore(t *testing.T) {
	for _, c := range []struct {
		limit, rate, charge float64
		want                time.Duration
	}{{0.5, 0.25, 0.5, 5 * ms}, {0.5, 0.5, 0.25, 5 * ms}, {0.5, 1, 1, 10 * ms}, {1, 0.5, 0.5, 0}} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{Limit: c.limit}, "a")
		a := d.find("a")
		a.bucket = 20 * ms
		a.serve(10*ms, c.rate, c.charge, true)
		fixture.If(t, a.bucket != 20*ms-c.want, "%+v: %v are gone", c, 20*ms-a.bucket)
	}
}

// Throttled time counts while a tenant wants more than its limit.
func TestThrottled(t *testing.T) {
	for _, c := range []struct {
		dry, wants, held bool
		limit            float64
		want             time.Duration
	}{{true, true, false, 0.5, ms}, {false, true, false, 0.5, 0}, {true, false, false, 0.5, 0},
		{true, true, true, 0.5, 0}, {true, true, false, 1, 0}} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{Limit: c.limit, Held: c.held}, "a")
		x := d.find("a")
		x.dry, x.wants, x.bucket = c.dry, c.wants, 0
		d.age(x, ms)
		fixture.If(t, x.stats.Throttled != c.want || x.dry != c.dry, "%+v: %+v, dry %v", c, x.stats, x.dry)
		fixture.If(t, c.limit < 1 && x.bucket != ms/2, "%+v: %v", c, x.bucket)
		x.bucket = 5*ms - ms/2 - 1
		d.age(x, ms)
		fixture.If(t, c.limit < 1 && x.dry != c.dry, "%+v: full enough with %v", c, x.bucket)
		d.age(x, 2)
		fixture.If(t, c.limit < 1 && x.dry, "%+v: not full enough with %v", c, x.bucket)
	}
}

// The audit must know when open tenants ran at once: what each had is not known then.
func TestOpenTenantsRunTogether(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	for _, x := range d.tenants {
		x.state.Mode = Open
	}
	d.Look(10 * ms)
	d.tenants[1].wants = false
	fixture.If(t, d.System().Together != 10*ms, "%+v", d.System())
	d.Look(20 * ms)
	fixture.If(t, d.System().Together != 10*ms, "beside one that rests: %+v", d.System())
}
