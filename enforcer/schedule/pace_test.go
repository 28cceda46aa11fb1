package schedule

import (
	"math"
	"testing"
	"time"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// The cost of a launch is nearly the least of the latest, each of 20 ms and of 8
// launches at least.
func TestCost(t *testing.T) {
	var p pace
	if p.cost() != 0 || p.known() != 0 {
		t.Errorf("%+v", p)
	}
	p.soloed(4, soloEnough-1, 0)
	if p.cost() != 0 {
		t.Errorf("%v after less than %v", p.cost(), soloEnough)
	}
	p.soloed(3, 1, 0)
	if c := p.cost(); !near(c, 0.02/7) || p.known() != 0 { // better than nothing
		t.Errorf("%v of %d", c, p.known())
	}
	p.soloed(1, 1, 7)
	if c := p.cost(); !near(c, 0.02/8) || p.known() != 1 || p.fresh != 7 || p.solo != (rate{}) {
		t.Errorf("%v of %d: %+v", c, p.known(), p)
	}
	for i, c := range []struct {
		launches float64
		want     float64
		known    int
	}{{20, 0.001, 2}, {40, 0.0005, 3}, {10, 0.001, 4}, {80, 0.0005, 5}, {40, 0.0005, 5}, {20, 0.0005, 5}, {20, 0.0005, 5}, {20, 0.0005, 5}, {20, 0.001, 5}} {
		if p.soloed(c.launches, soloEnough, 8); !near(p.cost(), c.want) || p.known() != c.known {
			t.Errorf("%d: %v of %d, want %v", i, p.cost(), p.known(), c.want)
		}
	}
	was := p
	p.soloed(0, time.Second, 9)
	p.soloed(-1, time.Second, 9)
	p.soloed(100, 0, 9)
	p.soloed(100, -1, 9)
	if p != was {
		t.Errorf("of nothing was learned: %+v", p)
	}
}

// The rate beside others is known after 30 ms, and of no use without a cost.
func TestRate(t *testing.T) {
	p := pace{beside: rate{1000 * besideEnough.Seconds() / 2, besideEnough.Seconds()}}
	if _, known := p.rate(); known || p.rateOr(0.7) != 0.7 {
		t.Error("known without a cost")
	}
	p.costs[0] = 0.001
	if r, known := p.rate(); !known || !near(r, 0.5) || !near(p.rateOr(0.7), 0.5) {
		t.Errorf("%v, known %v", r, known)
	}
	p.beside.launches = 100
	if r, _ := p.rate(); !near(r, 1.2) {
		t.Errorf("%v", r)
	}
	p.beside.seconds = besideEnough.Seconds() - 1e-6
	if r, known := p.rate(); known || r != 0 {
		t.Errorf("%v is known", r)
	}
}

// What a tenant did nothing in is taken back, the latest first.
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
}

// lessons has a run for so long alone and beside b, and then say what it
// launched.
func lessons(t *testing.T, solo, beside, given time.Duration) (d *desk, a *tenant) {
	d = two(t, Share{}, Share{})
	a = d.find("a")
	a.pace = pace{}
	a.pace.window.solo, a.pace.window.beside, a.pace.window.given = solo, beside, given
	return d, a
}

func TestLearnAlone(t *testing.T) {
	d, a := lessons(t, 40*ms, 5*ms, 2*ms)
	d.Report(d.at, "a", Usage{Launched: 100})
	if c := a.pace.cost(); !near(c, 0.04/100) || a.lag != 0 || a.pace.window.solo != 0 || a.pace.window.beside != 0 || a.pace.window.given != 0 {
		t.Errorf("%v: %+v", c, a.pace)
	}
	a.pace.window.solo, a.pace.window.beside, a.pace.window.given = 40*ms, 5*ms, 4*ms
	d.Report(d.at, "a", Usage{Launched: 100}) // ten of which were beside others
	if c := a.pace.costs[0]; !near(c, 0.04/90) {
		t.Errorf("%v: %+v", c, a.pace)
	}
}

// What was booked beside others is made to fit what was launched.
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
	} {
		d, a := lessons(t, c.solo, c.beside, c.given)
		a.pace.costs[0] = c.cost
		d.Report(d.at, "a", Usage{Launched: c.launched})
		if a.lag != c.lag || !near(a.pace.beside.launches, c.launches) || !near(a.pace.beside.seconds, c.beside.Seconds()) {
			t.Errorf("%+v: lag %v, %+v", c, a.lag, a.pace.beside)
		}
		if a.pace.window.solo+a.pace.window.beside+a.pace.window.given != 0 {
			t.Errorf("%+v: the window goes on", c)
		}
	}
}

// What is older counts half as much.
func TestBesideIsForgotten(t *testing.T) {
	d, a := lessons(t, 0, 200*ms, 0)
	if d.Report(d.at, "a", Usage{Launched: 100}); a.pace.beside != (rate{100, 0.2}) {
		t.Errorf("%+v", a.pace.beside)
	}
	a.pace.window.beside = 100 * ms
	if d.Report(d.at, "a", Usage{Launched: 20}); !near(a.pace.beside.launches, 60) || !near(a.pace.beside.seconds, 0.15) {
		t.Errorf("%+v", a.pace.beside)
	}
}

// Who is open says for how long it was busy, and is believed as far as the
// clock goes.
func TestLearnOpen(t *testing.T) {
	for _, c := range []struct{ says, want time.Duration }{{30 * ms, 30 * ms}, {-ms, 0}, {0, 0}, {time.Hour, 100 * ms}} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{}, "a")
		d.decide()
		d.at = 100 * ms
		d.Report(d.at, "a", Usage{Launched: 100, Busy: c.says})
		if s := d.Stats("a"); s.Charged != c.want || s.Served != c.want || s.Wanted != c.want || d.Lag("a") != 0 {
			t.Errorf("%v: %+v", c.says, s)
		}
		if a := d.find("a"); c.want > 0 && !near(a.pace.cost(), c.want.Seconds()/100) {
			t.Errorf("%v: %v", c.says, a.pace.cost())
		}
		d.Report(d.at, "a", Usage{Launched: 100, Busy: c.says}) // which is no more time
		if s := d.Stats("a"); s.Charged != c.want {
			t.Errorf("%v again: %+v", c.says, s)
		}
	}
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	d.decide()
	d.at = 100 * ms
	d.join(Share{}, "b")
	d.want("b")
	d.decide()
	d.Report(d.at, "a", Usage{Launched: 100, Busy: 70 * ms}) // of the time before
	if s := d.Stats("a"); s.Charged != 70*ms {
		t.Errorf("%+v", s)
	}
}

// Who runs beside others for the first time runs alone for a while, so that it
// is known what it does alone; a few times, and again when that was long ago.
func TestMeasured(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.at = ms
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	if d.decide(); d.measured != d.find("a") || modes(d.GPU) != "rp" {
		t.Fatalf("%s", modes(d.GPU))
	}
	began := d.at
	d.pass(measureTime - 1).shows("rp")
	d.pass(1)
	if d.measured != d.find("b") {
		t.Error("b is not measured after a")
	}
	d.drain("a")
	d.decide().shows("pr")
	d.rest("b")
	if d.decide(); d.measured != nil {
		t.Error("who rests is measured")
	}
	d.want("b")
	d.decide().know()
	for _, c := range []struct {
		known int
		since time.Duration // a cost was found
		tried time.Duration // ago
		lag   time.Duration // beside 0 of the other
		want  bool
	}{
		{3, 0, time.Second, 0, false}, {2, 0, time.Second, 0, true}, {2, 0, measureGap, 0, false}, {2, 0, measureGap + 1, 0, true},
		{3, staleTime, time.Second, 0, false}, {3, staleTime + 1, time.Second, 0, true}, {5, staleTime + 1, ms, 0, false},
		{2, 0, time.Second, -10 * ms, true}, {2, 0, time.Second, -10*ms - 1, false}, {2, 0, time.Second, ms, true},
	} {
		d.at = began + time.Minute
		d.know()
		d.Look(d.at)
		a, b := d.find("a"), d.find("b")
		a.pace.costs, b.pace.fresh, a.lag, b.lag = [5]float64{}, d.at, c.lag, 0
		for i := range c.known {
			a.pace.costs[i] = 0.001
		}
		a.pace.fresh, a.pace.tried = d.at-c.since, d.at-c.tried
		d.measured, d.find("a").wants, d.find("b").wants = nil, true, true
		if d.measure(); (d.measured == a) != c.want {
			t.Errorf("%+v: %v", c, d.measured)
		}
	}
}

// Nobody is measured where that tells nothing: alone, in turns, of another
// class, light, held or with nothing to do.
func TestNotMeasured(t *testing.T) {
	for what, change := range map[string]func(d *desk){
		"alone":    func(d *desk) { d.rest("b") },
		"idle":     func(d *desk) { d.Change(d.at, "b", Share{Class: Idle}) },
		"realtime": func(d *desk) { d.Change(d.at, "b", Share{Class: Realtime, Limit: 0.5}) },
		"held":     func(d *desk) { d.Change(d.at, "b", Share{Held: true}) },
		"light":    func(d *desk) { b := d.find("b"); b.burst, b.duty, b.began = ms, 0.1, d.at },
		"turns":    func(d *desk) { d.Host.config.Turns = true },
		"gone":     func(d *desk) { d.Leave(d.at, "b") },
	} {
		d := two(t, Share{}, Share{})
		d.at = ms
		d.find("a").pace, d.find("b").pace = pace{}, pace{}
		change(d)
		if d.Look(d.at); d.measured != nil {
			t.Fatalf("%s: measured already", what)
		}
		if d.measure(); d.measured != nil {
			t.Errorf("%s: %s is measured", what, d.measured.name)
		}
	}
}

// Of the time before it was open nothing is believed.
func TestLearnSinceOpen(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.at = 100 * ms
	d.join(Share{}, "a")
	d.decide().shows("O")
	d.at = 130 * ms
	if d.Report(d.at, "a", Usage{Launched: 100, Busy: time.Hour}); d.Stats("a").Charged != 30*ms {
		t.Errorf("%+v", d.Stats("a"))
	}
}
