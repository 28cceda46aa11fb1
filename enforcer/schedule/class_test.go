package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// realtime returns a client of the class that has a burst to do now and then.
func realtime(name string, limit float64, burst, think time.Duration) *client {
	return &client{name: name, Share: Share{Limit: limit, Class: Realtime}, kernel: 100 * us, burst: burst, think: think}
}

func idle(name string) *client {
	c := saturated(name, 1e-3)
	c.Class = Idle
	return c
}

func TestRealtimeHasItsTurnAtOnce(t *testing.T) {
	for seed := range uint64(4) {
		r := realtime("r", 0.3, ms, 10*ms)
		w := newWorld(t, seed, saturated("a", 50), saturated("b", 20), saturated("c", 30), idle("i"), r)
		w.run(5 * time.Second)
		worst := slices.Max(r.latency)
		t.Logf("seed %d: %d bursts of 1 ms, the longest took %v", seed, len(r.latency), worst)
		if bound := 2*ms + cap_ + 1*ms + 2*notice + switch_ + 600*us; worst > bound || len(r.latency) < 200 {
			t.Errorf("seed %d: of %d bursts of 1 ms the longest took %v, more than %v", seed, len(r.latency), worst, bound)
		}
		if s := w.g.Stats("r"); s.Late != 0 {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}

func TestRealtimeHasNoMoreThanItsLimit(t *testing.T) {
	r := saturated("r", 1)
	r.Limit, r.Class = 0.3, Realtime
	a, b := saturated("a", 30), saturated("b", 70)
	w := newWorld(t, 1, a, b, r)
	w.run(20 * time.Second)
	if part := r.done.Seconds() / 20; part > 0.305 || part < 0.3*0.88 {
		t.Errorf("%.1f %% of the GPU with a limit of 30 %%", 100*part)
	}
	if part := float64(a.done) / float64(a.done+b.done); part < 0.295 || part > 0.305 {
		t.Errorf("of what it leaves who is due 30 %% has %.1f %%", 100*part)
	}
	if c := (Share{Class: Realtime}).clean().Class; c != Normal {
		t.Errorf("who has no limit is of class %d", c)
	}
}

func TestIdleHasWhatIsLeft(t *testing.T) {
	i := idle("i")
	w := newWorld(t, 1, saturated("a", 1), saturated("b", 1), i)
	w.run(5 * time.Second)
	before := i.done
	if w.run(10 * time.Second); i.done != before {
		t.Errorf("it ran for %v while others wanted the GPU", i.done-before)
	}

	for seed := range uint64(3) {
		i, b := idle("i"), &client{name: "b", Share: Share{Weight: 1}, kernel: 100 * us, burst: 5 * ms, think: 20 * ms}
		w := newWorld(t, seed, i, b)
		w.run(10 * time.Second)
		if busy := w.busy.Seconds() / 10; busy < 0.95 || i.done < 6*time.Second {
			t.Errorf("seed %d: the GPU is busy %.1f %%, with what is idle %v", seed, 100*busy, i.done)
		}
		if worst, bound := slices.Max(b.latency), 5*ms+2*ms+cap_+2*notice+switch_+600*us; worst > bound {
			t.Errorf("seed %d: a burst of 5 ms beside an idle one took %v, more than %v", seed, worst, bound)
		}
	}
}

// Who is idle neither ends the running together of others nor takes part.
func TestIdleStaysOutOfTogether(t *testing.T) {
	solo := newWorld(t, 1, light("a", 1)).pace(time.Second)[0]
	i := light("i", 1e-3)
	i.Class = Idle
	w := newWorld(t, 1, i, light("a", 1), light("b", 1))
	w.run(2 * time.Second)
	rates := w.pace(10 * time.Second)
	if rates[1] < 0.95*solo || rates[2] < 0.95*solo || rates[0] != 0 {
		t.Errorf("launches per second: %.0f; %.0f alone", rates, solo)
	}
	if s := w.g.System(); s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

// A sleeper does not find that the one which nobody lets run has kept the time
// for it.
func TestStarvedIdleHoldsNoFloorDown(t *testing.T) {
	a, b := saturated("a", 1), saturated("b", 1)
	b.burst, b.think = 300*ms, 5*time.Second
	w := newWorld(t, 3, a, b, idle("i"))
	w.run(5 * time.Second)
	w.run(max(b.until-w.now, 0))
	before, mine := a.done, b.done
	w.run(100 * ms)
	if got := b.done - mine - (a.done - before); got > 25*ms || got < -15*ms {
		t.Errorf("after a sleep %v more than the other in 100 ms", got)
	}
}

func TestHeld(t *testing.T) {
	g := grantTo(t, Config{})
	g.Change(ms, "a", Share{Held: true})
	if wake := decide(t, g, ms); wake != 51*ms || g.State("a").Mode != Pause || g.State("b").Mode != Pause {
		t.Fatalf("held in its turn: a %+v, b %+v, to be called at %v", g.State("a"), g.State("b"), wake)
	}
	g.Yield(2*ms, "a", Usage{Turn: 1, Busy: 2 * ms}, false)
	if wake := decide(t, g, 2*ms); wake != 0 || g.State("b").Mode != Run || g.State("b").End != 0 {
		t.Fatalf("a has drained: b %+v, to be called at %v", g.State("b"), wake)
	}
	g.Yield(3*ms, "b", Usage{Turn: 2, Busy: ms}, true)
	g.Ask(3*ms, "a", 0, 0)
	if decide(t, g, 3*ms); g.State("a").Mode != Pause {
		t.Fatalf("it asks while it is held: %+v", g.State("a"))
	}
	if s := g.Stats("a"); s.Waited != 0 {
		t.Errorf("what held it was counted as waiting: %+v", s)
	}
	g.Change(9*ms, "a", Share{})
	if decide(t, g, 9*ms); g.State("a").Mode != Run {
		t.Errorf("held no more: %+v", g.State("a"))
	}
	if s := g.Stats("a"); s.Waited != 0 || s.Waits != 2 {
		t.Errorf("%+v", s)
	}
}

func TestHeldAlone(t *testing.T) {
	g := New(Config{})
	g.Join(0, "a", Share{})
	decide(t, g, 0)
	g.Change(ms, "a", Share{Held: true})
	if decide(t, g, ms); g.State("a").Mode != Pause {
		t.Fatalf("held: %+v", g.State("a"))
	}
	if wake := decide(t, g, 51*ms); wake != 0 || g.State("a").Mode != Pause {
		t.Fatalf("past the drain's deadline: %+v, to be called at %v", g.State("a"), wake)
	}
	g.Change(time.Second, "a", Share{})
	if decide(t, g, time.Second); g.State("a").Mode != Open || g.State("a").End != 0 {
		t.Errorf("held no more: %+v", g.State("a"))
	}
	g = New(Config{})
	g.Join(0, "a", Share{Held: true})
	if decide(t, g, 0); g.State("a").Mode != Pause {
		t.Errorf("held from the first: %+v", g.State("a"))
	}
}

func TestHeldTogether(t *testing.T) {
	g, now := New(Config{}), time.Duration(0)
	together(t, g, &now)
	g.Change(now, "a", Share{Held: true})
	if decide(t, g, now); g.State("a").Mode != Pause || g.State("b").Mode != Pause {
		t.Fatalf("a %+v, b %+v", g.State("a"), g.State("b"))
	}
	for _, name := range []string{"a", "b"} {
		g.Yield(now+ms, name, Usage{Turn: g.State(name).Turn}, false)
	}
	if decide(t, g, now+ms); g.State("a").Mode != Pause || g.State("b").Mode != Run {
		t.Errorf("drained: a %+v, b %+v", g.State("a"), g.State("b"))
	}
	g.Change(now+2*ms, "a", Share{})
	if decide(t, g, now+2*ms); !g.State("a").Watch || !g.State("b").Watch {
		t.Errorf("held no more: a %+v, b %+v", g.State("a"), g.State("b"))
	}
}

func TestWaits(t *testing.T) {
	g := New(Config{})
	g.Join(0, "a", Share{})
	g.Join(0, "b", Share{Wait: 12 * ms, Limit: 0.5})
	g.Ask(0, "a", 0, 0)
	g.Ask(0, "b", 0, 0)
	decide(t, g, 0)
	decide(t, g, 10*ms)
	if s := g.Stats("b"); s.Waited != 10*ms || s.Waits != 0 {
		t.Errorf("while it waits: %+v", s)
	}
	g.Yield(13*ms, "a", Usage{Turn: g.State("a").Turn, Busy: 13 * ms}, true)
	decide(t, g, 13*ms)
	if s := g.Stats("b"); s.Waited != 13*ms || s.Waits != 1 || s.Late != 1 {
		t.Errorf("after 13 ms: %+v", s)
	}
	end := g.State("b").End // its limit's
	decide(t, g, end)
	g.Yield(end, "b", Usage{Turn: g.State("b").Turn, Busy: end - 13*ms}, false)
	wake := decide(t, g, end)
	if decide(t, g, wake); g.State("b").Mode != Run {
		t.Fatalf("at %v b has %+v", wake, g.State("b"))
	}
	if s := g.Stats("b"); s.Late != 1 || s.Throttled < 9*ms || s.Waits != 2 {
		t.Errorf("what its limit made it wait: %+v", s)
	}
	g.Ask(wake+14*ms, "a", 0, 0)
	decide(t, g, wake+14*ms)
	g.Yield(wake+15*ms, "a", Usage{Turn: g.State("a").Turn}, true)
	if s := g.Stats("a"); s.Waits != 2 || s.Waited != ms || s.Late != 0 {
		t.Errorf("who gave up: %+v", s)
	}
}

// weigh gives clients the weights that their guarantees come to: each its own,
// and of what nobody is guaranteed a part by its class and priority.
func weigh(r *rand.Rand, guarantees []float64, clients []*client) {
	spare, parts := 1.0, 0.0
	priorities := make([]float64, len(clients))
	for i, c := range clients {
		spare -= guarantees[i]
		switch c.Class {
		case Realtime:
			priorities[i] = 4
		case Normal:
			priorities[i] = []float64{1, 2, 4}[r.IntN(3)]
		}
		parts += priorities[i]
	}
	for i, c := range clients {
		c.Weight = max(guarantees[i]+spare*priorities[i]/parts, 1e-3)
	}
}

// crowded returns 12 clients of all classes that together are guaranteed a part
// of the GPU, in random parts. One in sleepers does not want it always.
func crowded(r *rand.Rand, all float64, sleepers int) (clients []*client, guarantees []float64) {
	sum := 0.0
	for i := range 12 {
		c := saturated(names(i), 0)
		c.kernel = time.Duration(50+r.IntN(400)) * us
		if sleepers > 0 && r.IntN(sleepers) == 0 {
			c.burst, c.think = time.Duration(1+r.IntN(30))*ms, time.Duration(1+r.IntN(100))*ms
		}
		part := r.Float64()
		switch {
		case i < 2:
			c.Class, c.kernel = Realtime, 100*us
			part /= 2
		case i < 4:
			c.Class, part = Idle, 0
		}
		clients, guarantees, sum = append(clients, c), append(guarantees, part), sum+part
	}
	for i, c := range clients {
		guarantees[i] *= all / sum
		if c.Class == Realtime {
			c.Limit = guarantees[i]
		}
	}
	return clients, guarantees
}

// Whoever wants the GPU for all of a window has what it is guaranteed of all
// that was charged in it.
func TestGuarantees(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 11))
		clients, guarantees := crowded(r, []float64{1, 1, 0.9, 0.5}[seed%4], int(seed%3)*2)
		weigh(r, guarantees, clients)
		w := newWorld(t, seed, clients...)
		w.run(time.Second)
		var rows [][]time.Duration
		worst, who := 0.0, ""
		for range 140 {
			row := make([]time.Duration, len(clients)+1)
			for i, c := range clients {
				row[i] = w.g.Stats(c.name).Charged
				row[len(clients)] += row[i]
			}
			rows = append(rows, row)
			if n := len(rows); n > 100 {
				then := rows[n-101]
				for i, c := range clients {
					part := float64(row[i]-then[i]) / float64(row[len(clients)]-then[len(clients)])
					if short := 100 * (guarantees[i] - part); c.burst == 0 && short > worst {
						worst, who = short, c.name
					}
				}
			}
			w.run(100 * ms)
		}
		t.Logf("seed %d: at most %.2f points less than is guaranteed (%s), GPU %.1f %%", seed, worst, who, 100*w.busy.Seconds()/w.now.Seconds())
		if worst > 1 {
			t.Errorf("seed %d: %s has %.2f points less than it is guaranteed", seed, who, worst)
		}
	}
}
