package schedule

import (
	"testing"
	"time"
)

// light returns a client that its processor holds up: kernels of 2 us, one
// each 8 us.
func light(name string, weight float64) *client {
	return &client{name: name, Share: Share{Weight: weight}, kernel: 2 * us, cpu: 8 * us}
}

// pace returns launches per second of the clients in the next d.
func (w *world) pace(d time.Duration) []float64 {
	rates := make([]float64, len(w.clients))
	for i, c := range w.clients {
		rates[i] -= float64(c.launched)
	}
	w.run(d)
	for i, c := range w.clients {
		rates[i] = (rates[i] + float64(c.launched)) / d.Seconds()
	}
	return rates
}

func TestLightTenantsRunTogether(t *testing.T) {
	for _, weights := range [][]float64{{1, 1}, {30, 70}, {10, 90}, {1, 1, 1}} {
		solo := newWorld(t, 1, light("a", 1)).pace(time.Second)[0]
		var clients []*client
		for i, weight := range weights {
			clients = append(clients, light(names(i), weight))
		}
		w := newWorld(t, 1, clients...)
		w.run(2 * time.Second)
		for i, rate := range w.pace(10 * time.Second) {
			if rate < 0.95*solo {
				t.Errorf("%v: %s launches %.0f/s, %.0f alone", weights, names(i), rate, solo)
			}
		}
		if s := w.g.System(); s.Trials == 0 || s.Together < 11*time.Second {
			t.Errorf("%v: %+v", weights, s)
		}
		for _, c := range clients {
			if s := w.g.State(c.name); s.Mode != Open || !s.Watch {
				t.Errorf("%v: %s has %+v", weights, c.name, s)
			}
		}
	}
}

func TestSaturatedTenantEndsTogether(t *testing.T) {
	heavy := saturated("c", 1)
	heavy.from = 5 * time.Second
	a, b := light("a", 1), light("b", 1)
	w := newWorld(t, 1, a, b, heavy)
	w.run(5 * time.Second)
	if !w.g.together.on {
		t.Fatal("the light ones do not run together")
	}
	w.run(60 * ms)
	if w.g.together.on {
		t.Error("the light ones run together still, beside one that is not known to be light")
	}
	w.run(time.Second)
	mixed := w.mixed
	w.run(9 * time.Second)
	if w.mixed > mixed {
		t.Errorf("a saturated tenant ran together with others for %v", w.mixed-mixed)
	}
	if part := heavy.done.Seconds() / 10; part < 0.31 || part > 0.36 {
		t.Errorf("the third tenant got %.1f %% of the time", 100*part)
	}
}

// Two that each fit, and do not fit together: each launch is followed by as
// much of the processor's time, so that alone the queue is empty.
func TestTogetherEndsWhereTheSumDoesNotFit(t *testing.T) {
	half := func(name string) *client {
		return &client{name: name, Share: Share{Weight: 1}, kernel: 340 * us, cpu: 400 * us}
	}
	w := newWorld(t, 1, half("a"), half("b"))
	w.run(20 * time.Second)
	s := w.g.System()
	if s.Failed == 0 || s.Trials > 6 {
		t.Errorf("%d trials, %d failed: not one a second, then fewer", s.Trials, s.Failed)
	}
	if s.Together > 6*trialTime {
		t.Errorf("together for %v", s.Together)
	}
}

// Two that wait for each of their kernels: no marker is ever late, the GPU is
// busy all the same, and together each has half. Only what they launch tells.
func TestTogetherEndsWhereNobodyGains(t *testing.T) {
	waits := func(name string) *client {
		return &client{name: name, Share: Share{Weight: 1}, kernel: 200 * us, sync: true}
	}
	w := newWorld(t, 1, waits("a"), waits("b"))
	w.run(20 * time.Second)
	s := w.g.System()
	if s.Failed == 0 || s.Trials > 6 || s.Together < trialTime || s.Together > 6*(trialTime+20*ms) {
		t.Errorf("%+v", s)
	}
	for _, c := range w.clients {
		if !w.g.find(c.name).fits() {
			t.Errorf("%s had late markers", c.name)
		}
	}
}

func TestTogetherHasNoDebts(t *testing.T) {
	heavy := saturated("c", 1)
	heavy.from = 20 * time.Second
	a, b := light("a", 1), light("b", 9)
	w := newWorld(t, 1, a, b, heavy)
	w.run(21 * time.Second)
	rates := w.pace(2 * time.Second)
	if part := rates[0] / rates[1]; part < 0.09 || part > 0.13 {
		t.Errorf("after 20 s together the tenants of weight 1 and 9 launch %.3f to 1", part)
	}
}

func TestIdleTenantLeavesTogether(t *testing.T) {
	g, now := New(Config{}), time.Duration(0)
	together(t, g, &now)
	g.Join(now, "a", Share{})
	for i := range 2 {
		now += 100 * ms
		turn := g.State("a").Turn
		g.Report(now, "a", Usage{Turn: turn, Launched: 1000})
		g.Report(now, "a", Usage{Turn: turn}) // its other session
		g.Report(now, "b", Usage{Turn: g.State("b").Turn})
		if decide(t, g, now); i == 0 && !g.together.on {
			t.Fatal("one report without launches is enough")
		}
	}
	if s := g.State("b"); s.Mode != Pause {
		t.Errorf("who launches nothing has %+v", s)
	}
	if s := g.State("a"); s.Mode != Run || s.Watch || s.End != 0 {
		t.Errorf("who is left has %+v", s)
	}
	if s := g.System(); s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	g.Ask(now+ms, "b", 0, 0) // both are known to be light: at once together again
	decide(t, g, now+ms)
	if a, b := g.State("a"), g.State("b"); !a.Watch || !b.Watch || a.Mode != Open || b.Mode != Open {
		t.Errorf("a has %+v, b %+v", a, b)
	}
}

func TestLateMarkersEndTogetherAtOnce(t *testing.T) {
	for _, c := range []struct {
		marks, behind uint32
		ends          bool
	}{{100, 21, true}, {100, 20, false}, {5, 2, true}, {4, 4, false}} {
		g, now := New(Config{}), time.Duration(0)
		together(t, g, &now)
		now += 100 * ms
		g.Report(now, "a", Usage{Turn: g.State("a").Turn, Launched: 1000, Marks: c.marks, Behind: c.behind})
		if wake := decide(t, g, now); c.ends != (g.State("b").Mode == Pause) {
			t.Errorf("%d of %d markers late: b has %+v, to be called at %v", c.behind, c.marks, g.State("b"), wake)
		}
		if !c.ends {
			continue
		}
		// All drain before anybody has a turn.
		g.Yield(now+ms, "a", Usage{Turn: g.State("a").Turn}, false)
		if decide(t, g, now+ms); g.State("a").Mode != Pause || g.State("b").Mode != Pause {
			t.Errorf("before b drained: a has %+v, b %+v", g.State("a"), g.State("b"))
		}
		g.Yield(now+2*ms, "b", Usage{Turn: g.State("b").Turn}, false)
		if decide(t, g, now+2*ms); g.State("a").Mode == g.State("b").Mode {
			t.Errorf("after b drained: a has %+v, b %+v", g.State("a"), g.State("b"))
		}
	}
}

func TestNobodyNeedYieldTogether(t *testing.T) {
	g, now := New(Config{}), time.Duration(0)
	together(t, g, &now)
	was := g.State("a")
	g.Yield(now+ms, "a", Usage{Turn: was.Turn}, false)
	if decide(t, g, now+ms); g.State("a") != was {
		t.Errorf("who yields though nobody asked it to has %+v", g.State("a"))
	}
}

func TestOpenTurnTellsNoPace(t *testing.T) {
	g := New(Config{})
	g.Join(0, "a", Share{})
	decide(t, g, 0)
	g.Join(time.Second, "b", Share{})
	decide(t, g, time.Second) // a goes on with the same turn, in Run
	g.Yield(2*time.Second, "a", Usage{Turn: g.State("a").Turn, Launched: 1000, Marks: 100}, true)
	if a := g.find("a"); a.pace.solo != 0 || a.fits() {
		t.Errorf("of a time without markers was learned: %+v", a.pace)
	}
}

func TestWhoComesAfterAWhileEndsTheBackoff(t *testing.T) {
	g := New(Config{})
	g.Join(0, "a", Share{})
	g.Join(0, "b", Share{})
	for rest, want := range map[time.Duration]time.Duration{backoffLeast: time.Minute, backoffLeast + 1: 0} {
		g.together.backoff = time.Minute
		g.find("a").wants, g.find("a").rested = false, g.now
		g.Ask(g.now+rest, "a", 0, 0)
		if g.together.backoff != want {
			t.Errorf("after %v: %v", rest, g.together.backoff)
		}
	}
}

func TestWhoHasALimitIsNotLetTogether(t *testing.T) {
	a, b := light("a", 1), light("b", 1)
	b.Limit = 0.9
	w := newWorld(t, 1, a, b)
	w.run(5 * time.Second)
	if s := w.g.System(); s.Trials != 0 {
		t.Errorf("%+v", s)
	}
}

func TestLightNewcomerIsAdmitted(t *testing.T) {
	a, b, c := light("a", 1), light("b", 1), light("c", 1)
	c.burst, c.think, c.from = 30*ms, 400*ms, time.Second // it comes and goes
	w := newWorld(t, 1, a, b, c)
	w.run(5 * time.Second)
	solo := newWorld(t, 1, light("a", 1)).pace(time.Second)[0]
	if rate := w.pace(5 * time.Second)[0]; rate < 0.95*solo {
		t.Errorf("beside a light tenant that comes and goes: %.1f %%", 100*rate/solo)
	}
}

func TestTogetherEndsWithoutReports(t *testing.T) {
	g, now := New(Config{}), time.Duration(0)
	wake := together(t, g, &now)
	if wake != now+trialTime {
		t.Fatalf("to be judged at %v, not after %v", wake, trialTime)
	}
	now += 100 * ms
	g.Report(now, "a", Usage{Turn: g.State("a").Turn, Launched: 1})
	decide(t, g, wake)
	for _, name := range []string{"a", "b"} {
		if s := g.State(name); s.Mode != Pause {
			t.Errorf("%s has %+v after nobody reported", name, s)
		}
	}
	if s := g.System(); s.Failed != 1 {
		t.Errorf("%+v", s)
	}
}

func TestWhoIsLeftAndHasALimitNowIsNotLetBeyondIt(t *testing.T) {
	g, now := New(Config{}), time.Duration(0)
	together(t, g, &now)
	g.Change(now, "a", Share{Limit: 0.999}) // its bucket begins with 10 us
	g.Leave(now, "b")
	if decide(t, g, now); g.State("a").Mode != Pause {
		t.Errorf("a has %+v", g.State("a"))
	}
	now += ms
	if decide(t, g, now); g.State("a").Mode != Run {
		t.Errorf("later a has %+v", g.State("a"))
	}
}

// together lets two light tenants, a and b, take turns until they run together.
func together(t *testing.T, g *GPU, now *time.Duration) time.Duration {
	t.Helper()
	g.Join(*now, "a", Share{})
	g.Join(*now, "b", Share{})
	g.Ask(*now, "a", 0, 0)
	g.Ask(*now, "b", 0, 0)
	decide(t, g, *now)
	for range 200 {
		if g.together.on {
			return decide(t, g, *now)
		}
		*now += 12 * ms
		decide(t, g, *now)
		for _, o := range g.tenants {
			if len(g.on) > 0 && g.on[0] == o && g.draining {
				g.Yield(*now, o.name, Usage{Turn: o.state.Turn, Busy: 10 * ms, Launched: 1000, Marks: 20}, false)
				break
			}
		}
		decide(t, g, *now)
	}
	t.Fatal("two light tenants do not run together")
	return 0
}

func TestLiarCostsNobodyTheirShare(t *testing.T) {
	// It says that it is light and was never busy, and queues all it can.
	for _, other := range []*client{saturated("b", 1), light("b", 1)} {
		liar := saturated("a", 1)
		liar.lies = true
		alone := *other
		solo := newWorld(t, 1, &alone).pace(time.Second)[0]
		w := newWorld(t, 1, liar, other)
		w.run(time.Second)
		if rate := w.pace(10 * time.Second)[1]; rate < 0.47*solo {
			t.Errorf("%v beside a liar of the same weight: %.1f %% of its pace alone", other.cpu, 100*rate/solo)
		}
	}
}

func TestWhoNeverYieldsPaysForIt(t *testing.T) {
	stuck, b := saturated("a", 1), saturated("b", 1)
	stuck.stuck = true
	w := newWorld(t, 1, stuck, b)
	w.run(10 * time.Second)
	if part := b.done.Seconds() / 10; part < 0.47 {
		t.Errorf("beside who never yields: %.1f %%", 100*part)
	}
	if b.longest > 400*ms || stuck.longest > 400*ms {
		t.Errorf("waits of %v and %v", stuck.longest, b.longest)
	}
	if s := w.g.Stats("a"); s.Overruns == 0 || s.Overrun < time.Duration(s.Overruns)*50*ms {
		t.Errorf("%+v", s)
	}
}

func TestLongKernelsAreChargedWholly(t *testing.T) {
	// 100 ms of kernel outlast the deadline; what they take of the other's turn
	// is charged.
	long, b := saturated("a", 1), saturated("b", 1)
	long.kernel = 100 * ms
	w := newWorld(t, 1, long, b)
	w.run(20 * time.Second)
	part := float64(b.done) / float64(long.done+b.done)
	if part < 0.42 || part > 0.6 {
		t.Errorf("beside kernels of 100 ms: %.1f %%", 100*part)
	}
}
