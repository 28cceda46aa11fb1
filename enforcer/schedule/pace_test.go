package schedule

import (
	"math"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// costs returns a known cost: seconds per launch alone.
func costs(seconds float64) rate { return rate{measured.Seconds() / seconds, measured.Seconds()} }

// The cost of a launch is known after a while, and older measurements count less.
func TestCost(t *testing.T) {
	var p pace
	p.solo.add(4, 4*ms-1, soloMemory)
	fixture.Equal(t, p.cost(), 0, "the cost after less than 4 ms")
	if p.solo.add(0, 1, soloMemory); !near(p.cost(), 0.001) {
		t.Errorf("%v", p.cost())
	}
	if p.solo.launches = 0; p.cost() != 0 {
		t.Errorf("%v of no launch", p.cost())
	}
	var r rate
	r.add(100, soloMemory, soloMemory)
	fixture.If(t, r != (rate{100, 0.4}), "%+v", r)
	r.add(20, soloMemory/2, soloMemory)
	fixture.If(t, !near(r.launches, 60) || !near(r.seconds, 0.3), "%+v", r)
}

// The rate beside others is known after 15 ms, and needs a cost to be of use.
func TestRate(t *testing.T) {
	p := pace{beside: rate{7.5, 0.015}}
	_, known := p.rate()
	fixture.If(t, known || p.rateOr(0.7) != 0.7, "known without a cost")
	p.solo = costs(0.001)
	r, known := p.rate()
	fixture.If(t, !known || !near(r, 0.5) || !near(p.rateOr(0.7), 0.5), "%v, known %v", r, known)
	p.beside.launches = 100
	r, _ = p.rate()
	fixture.If(t, !near(r, 1.2), "%v", r)
	p.beside.seconds = 0.015 - 1e-6
	r, known = p.rate()
	fixture.If(t, known || r != 0, "%v is known", r)
}

// The time in which a tenant did nothing is taken back, the latest first.
func TestIdleTime(t *testing.T) {
	var p pace
	p.ran(10*ms, 4*ms, false)
	p.ran(6*ms, 6*ms, true)
	for _, c := range []struct{ ago, want, beside, given, solo time.Duration }{
		{5 * ms, 2 * ms, 5 * ms, 2 * ms, 6 * ms},
		{7 * ms, 4 * ms, 0, 0, 4 * ms},
		{9 * ms, 4 * ms, 0, 0, 0},
		{9 * ms, 0, 0, 0, 0},
	} {
		got := p.idle(c.ago)
		if w := p.window; got != c.want || w.beside != c.beside || w.given != c.given || w.solo != c.solo {
			t.Errorf("%v: %v, %+v", c.ago, got, w)
		}
	}
	if p.ran(1, 1, false); p.idle(1) != 1 || p.window.beside != 0 { // a moment is treated alike
		t.Errorf("%+v", p.window)
	}
}

// A tenant that rests has not shared the latest time with the tenant that continues, if it ran at all. While
// it was paused, the books already counted the other as alone.
func TestRestGivesTheOtherItsTimeAlone(t *testing.T) {
	for mode, want := range map[Mode]time.Duration{Run: 6 * ms, Pause: 10 * ms} {
		d := two(t, Share{}, Share{})
		d.at = 20 * ms
		d.Look(d.at)
		a, b := d.find("a"), d.find("b")
		a.state.Mode, b.state.Mode, b.drains = Run, mode, false
		a.pace.window.beside, a.pace.window.given, a.pace.window.solo = 10*ms, 5*ms, 0
		if d.Rest(d.at, "b", Usage{Ago: 4 * ms}); a.pace.window.beside != want || a.pace.window.solo != 10*ms-want {
			t.Errorf("mode %d: %v beside, %v alone", mode, a.pace.window.beside, a.pace.window.solo)
		}
	}
}

// lessons runs a tenant alone and then beside b for the given times, with the given booked service for the latter.
func lessons(t *testing.T, solo, beside, given time.Duration) (d *desk, a *tenant) {
	d = two(t, Share{}, Share{})
	a = d.find("a")
	a.pace = pace{}
	a.pace.window.solo, a.pace.window.beside, a.pace.window.given = solo, beside, given
	a.bill.served = given
	return d, a
}

// The noise of launches is that of successive reports, and gives an error over a time.
func TestNoise(t *testing.T) {
	var n noise
	for i, c := range []struct {
		launches float64
		over     time.Duration
		want     float64
	}{{100, 10 * ms, 0.0005}, {50, 10 * ms, 0.000575}, {50, 10 * ms, 0.0005175}, {100, 20 * ms, 0.000414}, {100, 200 * ms, 0.040707}} {
		n.add(c.launches, c.over)
		fixture.If(t, math.Abs(n.square-c.want) > 1e-6, "%d: %v, want %v", i, n.square, c.want)
	}
	n.add(0, 10*ms)
	fixture.If(t, n.last != 0.02, "without a launch one takes %v s", n.last)
	n.square = 0.0004
	fixture.Near(t, n.enough(0.1).Seconds(), 0.04, 1e-6, "for an error of a tenth")
	fixture.Near(t, n.off(rate{1, 0.04}), 0.1, 1e-9, "error over 40 ms")
	fixture.Near(t, n.off(rate{1, 1e-6}), 0.3, 1e-9, "error over a moment")
	n.square = 1
	fixture.Equal(t, n.enough(0.1), soloMost, "at most")
}

// The lone pace is learned only from launches between markers.
func TestLearnAlone(t *testing.T) {
	d, a := lessons(t, 40*ms, 5*ms, 2*ms)
	d.Report(d.at, "a", Usage{Launched: 1000, Solo: 100, SoloTime: 30 * ms})
	if c := a.pace.cost(); !near(c, 0.03/100) || a.lag != 0 || a.pace.fresh != d.at ||
		a.pace.window.solo+a.pace.window.beside+a.pace.window.given != 0 || a.pace.beside != (rate{}) {
		t.Errorf("%v: %+v", c, a.pace)
	}
	fixture.If(t, a.pace.noise.solo.square != noiseFirst, "noise %v", a.pace.noise.solo)
	a.pace.noise.solo = noise{}
	a.pace.solo, a.pace.fresh = rate{100, 0.2}, d.GPU.now-staleTime-1 // old, so that it makes way
	if d.Report(d.at, "a", Usage{Solo: 10, SoloTime: ms}); !near(a.pace.solo.seconds, soloEnough.Seconds()+0.001) ||
		!near(a.pace.solo.launches, 100*soloEnough.Seconds()/0.2+10) {
		t.Errorf("%+v", a.pace)
	}
	a.pace.solo = rate{100, 0.03}
	was := a.pace.solo
	for _, u := range []Usage{{Launched: 100, Solo: 100}, {Launched: 100, SoloTime: ms},
		{Launched: 100, Solo: 100, SoloTime: -ms}} {
		d.Report(d.at+ms, "a", u)
		fixture.If(t, a.pace.solo != was, "%+v: %+v", u, a.pace)
	}
	d.Report(d.at+ms, "a", Usage{Solo: 100, SoloTime: 1})
	fixture.If(t, a.pace.solo.launches != was.launches+100, "in a moment: %+v", a.pace)
	a.pace.solo = was
	if d.Report(d.at+ms, "a", Usage{Solo: 100, SoloTime: time.Hour}); !near(a.pace.solo.seconds, 1.03) ||
		!near(a.pace.solo.launches, 100+100./3600) { // as many as in the time that counts
		t.Errorf("%+v", a.pace)
	}
}

// The service that was booked beside others is corrected by the launches.
func TestLearnBeside(t *testing.T) {
	for _, c := range []struct {
		cost                float64
		solo, beside, given time.Duration
		launched            uint64
		lag                 time.Duration
		launches            float64
	}{
		{0.001, 0, 40 * ms, 20 * ms, 30, -10 * ms, 30},
		{0.001, 0, 40 * ms, 20 * ms, 10, 10 * ms, 10},
		{0.001, 20 * ms, 40 * ms, 20 * ms, 50, -10 * ms, 30},
		{0.001, 20 * ms, 40 * ms, 20 * ms, 10, 20 * ms, 0},
		{0.001, 0, 40 * ms, 20 * ms, 100000, 20*ms - 40*ms - besideEnough, 100000},
		{0, 0, 40 * ms, 20 * ms, 30, 0, 30},
		{0, 20 * ms, 20 * ms, 20 * ms, 30, 0, 15},
		{0.001, 40 * ms, 5*ms + 1, 2 * ms, 42, 0, 2},
		{0.001, 40 * ms, 5 * ms, 2 * ms, 42, 0, 0},
	} {
		d, a := lessons(t, c.solo, c.beside, c.given)
		if c.cost > 0 {
			a.pace.solo = costs(c.cost)
		}
		d.Report(d.at, "a", Usage{Launched: c.launched})
		fixture.If(t, a.lag != c.lag || !near(a.pace.beside.launches, c.launches) ||
			!near(a.pace.beside.seconds, c.beside.Seconds()) && c.launches > 0,
			"%+v: lag %v, %+v", c, a.lag, a.pace.beside)
		fixture.Equal(t, a.pace.window.solo+a.pace.window.beside+a.pace.window.given, 0, "%+v: the window goes on", c)
		served := c.given - c.lag
		if c.beside <= c.solo/8 { // nothing was learned
			served = 0
		}
		fixture.Equal(t, d.Stats("a").Served, served, "%+v: served", c)
	}
	d, a := lessons(t, 0, 4*time.Second, 2*time.Second)
	a.pace.solo = costs(0.001)
	d.Report(d.at, "a", Usage{Launched: 3000})
	fixture.If(t, off(a.lag, -time.Second), "after long: lag %v", a.lag)
}

// Launches beside others are charged to a limit if they exceed the booked service, which the bucket has paid already.
func TestLearnBesideWithLimit(t *testing.T) {
	for what, c := range map[string]struct {
		limit    float64
		launched uint64
		want     time.Duration
	}{
		"more":       {0.5, 35, 15 * ms},
		"as much":    {0.5, 20, 30 * ms},
		"less":       {0.5, 5, 30 * ms},
		"nothing":    {0.5, 0, 30 * ms},
		"no limit":   {1, 35, 30 * ms},
		"high limit": {0.999, 35, 15 * ms},
	} {
		d, a := lessons(t, 0, 40*ms, 20*ms)
		a.share.Limit, a.bucket, a.pace.solo = c.limit, 30*ms, costs(0.001)
		d.Report(d.at, "a", Usage{Launched: c.launched})
		fixture.If(t, a.bucket != c.want, "%s: %v is left, not %v", what, a.bucket, c.want)
	}
}

// A report of being busy says nothing about the pace, however short the time was.
func TestBusyTellsNoPace(t *testing.T) {
	for _, busy := range []time.Duration{1, ms} {
		d, a := lessons(t, 0, 40*ms, 20*ms)
		a.looked, a.closed = d.at-ms, d.at // it was alone until now
		was := a.pace
		was.steady = rate{30, busy.Seconds()}
		d.Report(d.at, "a", Usage{Launched: 30, Busy: busy})
		fixture.If(t, a.pace != was || a.lag != 0, "busy for %v: lag %v, %+v", busy, a.lag, a.pace)
	}
}

// Older measurements count half.
func TestBesideIsForgotten(t *testing.T) {
	d, a := lessons(t, 0, 200*ms, 0)
	d.Report(d.at, "a", Usage{Launched: 100})
	fixture.If(t, a.pace.beside != (rate{100, 0.2}), "%+v", a.pace.beside)
	a.pace.window.beside = 300 * ms
	if d.Report(d.at, "a", Usage{Launched: 20}); !near(a.pace.beside.launches, 120) ||
		!near(a.pace.beside.seconds, 0.5) {
		t.Errorf("half a second is too old: %+v", a.pace.beside)
	}
	a.pace.beside = rate{100, 0.2}
	a.pace.window.beside = 300*ms + 1
	if d.Report(d.at, "a", Usage{Launched: 20}); !near(a.pace.beside.launches, 60) ||
		!near(a.pace.beside.seconds, 0.25) {
		t.Errorf("more than half a second: %+v", a.pace.beside)
	}
	a.pace.beside = rate{60, 0.3}
	a.pace.beside.fade(300 * ms)
	fixture.If(t, !near(a.pace.beside.launches, 60), "%+v", a.pace.beside)
	a.pace.beside.fade(100 * ms)
	fixture.If(t, !near(a.pace.beside.launches, 20) || !near(a.pace.beside.seconds, 0.1), "%+v", a.pace.beside)
	a.pace.window.beside = 20 * ms
	d.together = false // so that the time beside others is only a hand-over
	d.Report(d.at, "a", Usage{Launched: 20})
	fixture.If(t, !near(a.pace.beside.launches, 20), "%+v", a.pace.beside)
}

// An open tenant reports for how long it was busy, and is believed up to the time that passed.
func TestLearnOpen(t *testing.T) {
	for _, c := range []struct{ says, want time.Duration }{{30 * ms, 30 * ms}, {-ms, 0}, {0, 0},
		{time.Hour, 100 * ms}} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{}, "a")
		d.decide()
		d.at = 100 * ms
		d.Report(d.at, "a", Usage{Launched: 100, Busy: c.says})
		if s := d.Stats("a"); s.Charged != c.want || s.Served != c.want || s.Wanted != c.want || d.Lag("a") != 0 {
			t.Errorf("%v: %+v", c.says, s)
		}
		if a := d.find("a"); a.pace != (pace{steady: rate{100, c.want.Seconds()}}) { // busy for less than the minimum
			t.Errorf("%v: %+v", c.says, a.pace)
		}
		d.Report(d.at, "a", Usage{Launched: 100, Busy: c.says}) // no more time than before
		fixture.Equal(t, d.Stats("a").Charged, c.want, "%v again: charged", c.says)
	}
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	d.decide()
	d.at = 100 * ms
	d.join(Share{}, "b")
	d.want("b")
	d.decide()
	d.Report(d.at, "a", Usage{Launched: 100, Busy: 70 * ms}) // of the time before
	fixture.Equal(t, d.Stats("a").Charged, 70*ms, "charged")
	for range 100 { // from then on the clock counts
		d.at += ms
		d.Report(d.at, "a", Usage{Launched: 1, Busy: time.Hour})
	}
	if a, b := d.Stats("a").Charged, d.Stats("b").Charged; a+b > d.at {
		t.Errorf("%v and %v are charged in %v", a, b, d.at)
	}
}

// A tenant that runs beside others for the first time runs alone for a while, which measures its lone pace.
// This happens a few times, and again after a long time.
func TestMeasured(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.at = ms
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide()
	fixture.Stop(t, d.measured != d.find("a") || modes(d.GPU) != "rp", "%s", modes(d.GPU))
	began := d.at
	d.pass(30*ms - 1).shows("rp")
	d.pass(1)
	fixture.Equal(t, d.measured, d.find("b"), "measured after a")
	d.drain("a")
	d.decide().shows("pr")
	d.rest("b")
	d.decide()
	fixture.If(t, d.measured != nil, "a resting tenant is measured")
	d.want("b")
	d.decide().know()
	for _, c := range []struct {
		known time.Duration // measured time of the lone pace
		since time.Duration // age of the lone pace
		tried time.Duration // time since the last attempt
		lag   time.Duration // lag, where the other has 0
		want  bool
	}{
		{60 * ms, 0, time.Second, 0, false}, {60*ms - us, 0, time.Second, 0, true}, {ms, 0, 200 * ms, 0, false},
		{ms, 0, 200*ms + 1, 0, true},
		{60 * ms, 4 * time.Second, time.Second, 0, false}, {60 * ms, 4*time.Second + 1, time.Second, 0, true},
		{60 * ms, 4*time.Second + 1, ms, 0, false},
		{ms, 0, time.Second, -10 * ms, true}, {ms, 0, time.Second, -10*ms - 1, false}, {ms, 0, time.Second, ms, true},
	} {
		d.at = began + time.Minute
		d.know()
		d.Look(d.at)
		a, b := d.find("a"), d.find("b")
		b.pace.fresh, a.lag, b.lag = d.at, c.lag, 0
		a.pace.solo = rate{100, c.known.Seconds()}
		a.pace.fresh, a.pace.tried = d.at-c.since, d.at-c.tried
		d.measured, d.find("a").wants, d.find("b").wants = nil, true, true
		d.measure()
		fixture.If(t, (d.measured == a) != c.want, "%+v: %v", c, d.measured)
	}
}

// An old pace counts for little once it is measured again.
func TestMeasuredAnew(t *testing.T) {
	for since, want := range map[time.Duration]float64{4 * time.Second: 0.01, 4*time.Second + 1: 0.004} {
		d := two(t, Share{}, Share{})
		d.at = time.Minute
		d.Look(d.at)
		d.know()
		a := d.find("a")
		a.pace.solo, a.pace.fresh, a.pace.tried, d.measured = rate{100, 0.01}, d.at-since, 0, nil
		d.measure()
		fixture.If(t, d.measured != a || !near(a.pace.solo.seconds, want), "%v later: %+v", since, a.pace)
	}
}

// A lone pace that is confirmed is believed for longer, up to 16 s.
func TestPaceConfirmed(t *testing.T) {
	for _, c := range []struct {
		cost      float64       // compared with 1 ms before
		over      time.Duration // length of the measurement
		confirmed uint
		want      uint
		believed  time.Duration
	}{
		{0.00109, 60 * ms, 0, 1, 8 * time.Second},
		{0.00091, 60 * ms, 1, 2, 16 * time.Second},
		{0.001, 60 * ms, 2, 2, 16 * time.Second},
		{0.00111, time.Second, 2, 0, 4 * time.Second},
		{0.00089, time.Second, 1, 0, 4 * time.Second},
		{0.001, 30 * ms, 1, 1, 8 * time.Second},
	} {
		d, a := lessons(t, 40*ms, 0, 0)
		a.pace.solo, a.pace.confirmed = rate{100, 0.1}, c.confirmed
		a.pace.fresh = d.GPU.now - staleTime<<c.confirmed - 1
		d.Report(d.at, "a", Usage{Solo: uint64(c.over.Seconds()/c.cost + 0.5), SoloTime: c.over})
		if p := &a.pace; p.confirmed != c.want || p.stale(d.GPU.now+c.believed) || !p.stale(d.GPU.now+c.believed+1) {
			t.Errorf("%+v: %d, stale %v", c, p.confirmed, p.stale(d.GPU.now+c.believed))
		}
		again := a.pace.confirmed // a new measurement is not compared with itself
		if d.Report(d.at, "a", Usage{Solo: 1000, SoloTime: time.Second}); a.pace.confirmed != again &&
			c.over >= measured {
			t.Errorf("%+v: confirmed again", c)
		}
	}
}

// The measurement is just long enough, at a second per launch.
func TestConfirm(t *testing.T) {
	for seconds, want := range map[float64]uint{measured.Seconds(): 1, measured.Seconds() - 1e-6: 0} {
		p := pace{old: 1, solo: rate{seconds, seconds}}
		p.confirm()
		fixture.If(t, p.confirmed != want || (p.old == 0) != (want == 1), "%v s: %+v", seconds, p)
	}
}

// A tenant that is ahead is measured too if none was measured recently.
func TestMeasuredThoughAhead(t *testing.T) {
	for ago, want := range map[time.Duration]bool{time.Second: true, time.Second - 1: false} {
		d := two(t, Share{}, Share{})
		d.at = time.Minute
		d.Look(d.at)
		d.know()
		a := d.find("a")
		d.find("b").lag = 0
		a.lag, a.pace.solo, a.pace.tried, d.measured, d.measuredAt = -30*ms, rate{}, 0, nil, d.at-ago
		if d.measure(); (d.measured == a) != want || want && d.measuredAt != d.at {
			t.Errorf("%v later: %v", ago, d.measured != nil)
		}
	}
}

// Nobody is measured if that gives no information: alone, in turns, in another class, light, held or without work.
func TestNotMeasured(t *testing.T) {
	for what, change := range map[string]func(d *desk){
		"alone":    func(d *desk) { d.rest("b") },
		"idle":     func(d *desk) { d.Change(d.at, "b", Share{Class: Idle}) },
		"realtime": func(d *desk) { d.Change(d.at, "b", Share{Class: Realtime, Limit: 0.5}) },
		"held":     func(d *desk) { d.Change(d.at, "b", Share{Held: true}) },
		"light":    func(d *desk) { b := d.find("b"); b.burst, b.duty, b.began = ms, 0.1, d.at },
		"turns":    func(d *desk) { d.Scheduler.config.Turns = true },
		"gone":     func(d *desk) { d.Leave(d.at, "b") },
	} {
		d := two(t, Share{}, Share{})
		d.at = ms
		d.find("a").pace, d.find("b").pace = pace{}, pace{}
		change(d)
		d.Look(d.at)
		fixture.Stop(t, d.measured != nil, "%s: measured already", what)
		if d.measure(); d.measured != nil {
			t.Errorf("%s: %s is measured", what, d.measured.name)
		}
	}
}

// Reports about the time before the tenant was open are ignored.
func TestLearnSinceOpen(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.at = 100 * ms
	d.join(Share{}, "a")
	d.decide().shows("O")
	d.at = 130 * ms
	d.Report(d.at, "a", Usage{Launched: 100, Busy: time.Hour})
	fixture.If(t, d.Stats("a").Charged != 30*ms, "%+v", d.Stats("a"))
}

// A lone pace that was measured beside an ungoverned program is too slow, so
// that running together seems to gain much. The schedule corrects it in time, and the other one with it.
func TestWrongPaceIsCorrected(t *testing.T) {
	t.Parallel()
	for _, wrong := range []int{1, 2} { // number of wrong paces
		a, b := kind("steps", 70), kind("steps", 30)
		b.name = "others"
		w := newWorld(t, false, nil, a, b)
		w.run(time.Second)
		g := w.gpus[0].g
		for _, p := range []*program{b, a}[:wrong] {
			tenant := g.find(p.name)
			tenant.pace.solo.seconds *= 2.5
		}
		g.together = true
		w.run(6 * time.Second)
		for _, p := range w.programs {
			if off := g.find(p.name).pace.cost() * alone(t, "steps").lone * float64(p.count); math.Abs(off-1) > alike {
				t.Errorf("%d wrong: a launch of %s costs %.3f of its lone pace", wrong, p.name, off)
			}
		}
	}
}

// What was measured before a tenant came counts least afterwards: it was another phase of its program.
func TestAnEarlierPhaseIsForgotten(t *testing.T) {
	for came, forgotten := range map[time.Duration]bool{-1: false, 1: true} { // since the last measurement
		d, a, _ := pair(t)
		a.pace.solo, a.pace.noise.solo = costs(1e-3), noise{square: 1, last: 1e-3} // launches differ much
		a.pace.fresh = d.at - staleTime - 2
		a.came = a.pace.fresh + came
		d.Report(d.at, "a", Usage{Solo: 1000, SoloTime: 30 * ms})
		cost := a.pace.cost()
		fixture.If(t, (cost < 4e-5) != forgotten, "it came %v after it was measured: %v s", came, cost)
	}
}

// TestPaceInTurns has a program do less in its turns than in as much time alone, by what its memory and the clocks are
// then. If it was alone for long enough, it has as much of its lone pace as its neighbour.
func TestPaceInTurns(t *testing.T) {
	t.Parallel()
	for cold, most := range map[float64]float64{0: 0.01, 0.06: 0.01, 0.19: 0.05} { // who is slowed by more gains no more
		a, b := kind("queue", 50), kind("queue", 50)
		a.name, a.cold = "a", cold
		b.name, b.from = "b", 2500*ms
		w := newWorld(t, false, nil, a, b)
		w.run(7 * time.Second)
		lone := alone(t, "queue").lone
		had, other := a.rate(4*time.Second, w.now)/lone, b.rate(4*time.Second, w.now)/lone
		fixture.AtMost(t, math.Abs(had-other), most, "the difference of %.3f and %.3f of their lone paces by %.2f:", had, other, cold)
		fixture.AtLeast(t, other, 0.495/(1+turnsDiffer)-0.02, "the other's part of its lone pace by %.2f", cold)
	}
}
