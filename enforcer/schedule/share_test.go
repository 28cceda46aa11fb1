package schedule

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

func saturated(name string, weight float64) *client {
	return &client{name: name, Share: Share{Weight: weight}, kernel: 140 * us}
}

func names(i int) string { return string(rune('a' + i)) }

// errors returns the worst error of any client's part of the work in the time
// all, in points, over windows of 1 s and of 10 s that begin each tenth of a
// second.
func (w *world) errors(all time.Duration) (short, long float64) {
	weights := 0.0
	for _, c := range w.clients {
		weights += c.Weight
	}
	var rows [][]float64
	worst := func(span int) (off float64) {
		if len(rows) <= span {
			return 0
		}
		now, then, sum := rows[len(rows)-1], rows[len(rows)-1-span], 0.0
		for i := range now {
			sum += now[i] - then[i]
		}
		for i, c := range w.clients {
			off = max(off, 100*math.Abs((now[i]-then[i])/sum-c.Weight/weights))
		}
		return off
	}
	for range all / (100 * ms) {
		var row []float64
		for _, c := range w.clients {
			row = append(row, c.done.Seconds())
		}
		rows = append(rows, row)
		short, long = max(short, worst(10)), max(long, worst(100))
		w.run(100 * ms)
	}
	return short, long
}

func TestSharesOfSaturatedTenants(t *testing.T) {
	for _, weights := range [][]float64{{30, 70}, {10, 90}, {50, 50}, {20, 30, 50}} {
		for _, kernel := range []time.Duration{140 * us, 2 * ms, 10 * ms} {
			t.Run(fmt.Sprint(weights, kernel), func(t *testing.T) {
				for seed := range uint64(2) {
					var clients []*client
					for i, weight := range weights {
						c := saturated(names(i), weight)
						c.kernel, c.from = kernel, time.Duration(i)*time.Duration(seed)*7*ms
						clients = append(clients, c)
					}
					w := newWorld(t, seed, clients...)
					w.run(500 * ms)
					mixed := w.mixed
					short, long := w.errors(11 * time.Second)
					t.Logf("seed %d: error %.2f points over 1 s, %.2f over 10 s, GPU %.1f %%", seed, short, long, 100*w.busy.Seconds()/w.now.Seconds())
					if short > 2 || long > 0.5 {
						t.Errorf("seed %d: error %.2f points over 1 s, %.2f over 10 s", seed, short, long)
					}
					if w.mixed > mixed {
						t.Errorf("seed %d: two ran at once for %v", seed, w.mixed-mixed)
					}
				}
			})
		}
	}
}

func TestBurstsLeaveNoGPUIdle(t *testing.T) {
	for seed := range uint64(4) {
		bursty := &client{name: "b", Share: Share{Weight: 50}, kernel: 100 * us, burst: 5 * ms, think: 20 * ms, hints: seed%2 == 0}
		w := newWorld(t, seed, saturated("a", 50), bursty)
		w.run(10 * time.Second)
		slices.Sort(bursty.latency)
		p95 := bursty.latency[len(bursty.latency)*95/100]
		busy := w.busy.Seconds() / w.now.Seconds()
		t.Logf("seed %d: GPU busy %.2f %%, burst of 5 ms p95 %v", seed, 100*busy, p95)
		if busy < 0.97 {
			t.Errorf("seed %d: GPU busy %.2f %%", seed, 100*busy)
		}
		if p95 > 12*ms {
			t.Errorf("seed %d: p95 %v", seed, p95)
		}
	}
}

func TestManyBurstyTenantsConserveWork(t *testing.T) {
	for seed := range uint64(3) {
		clients := []*client{saturated("a", 10)}
		for i := 1; i < 6; i++ {
			clients = append(clients, &client{name: names(i), Share: Share{Weight: 10}, kernel: 200 * us,
				burst: time.Duration(i) * 3 * ms, think: time.Duration(i) * 10 * ms})
		}
		w := newWorld(t, seed, clients...)
		w.run(10 * time.Second)
		// Each of some 150 hand-overs a second takes 0.2 ms to see that the burst
		// has ended and 0.16 ms to begin the next: that is what is missing.
		if busy := w.busy.Seconds() / w.now.Seconds(); busy < 0.94 {
			t.Errorf("seed %d: GPU busy %.2f %%", seed, 100*busy)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, limit := range []float64{0.05, 0.3, 0.8} {
		alone := saturated("a", 1)
		alone.Limit = limit
		w := newWorld(t, 1, alone)
		w.run(10 * time.Second)
		part := alone.done.Seconds() / 10
		t.Logf("limit %.2f: %.2f %% alone", limit, 100*part)
		if part > limit+0.005 || part < limit*0.9 {
			t.Errorf("limit %.2f: %.2f %% alone", limit, 100*part)
		}
		if alone.waits == 0 && w.g.Stats("a").Throttled == 0 {
			t.Error("the limit stood against nothing")
		}

		beside, other := saturated("a", 1), saturated("b", 1)
		beside.Limit = limit
		w = newWorld(t, 1, beside, other)
		w.run(10 * time.Second)
		want := min(limit, 0.5)
		if part := beside.done.Seconds() / 10; part > want+0.005 || part < want*0.88 {
			t.Errorf("limit %.2f: %.2f %% beside another", limit, 100*part)
		}
		if busy := w.busy.Seconds() / 10; busy < 0.93 {
			t.Errorf("limit %.2f: GPU busy %.2f %%", limit, 100*busy)
		}
	}
}

// Who gives each turn back before its end, because it pauses for a moment, is
// kept to its limit like everybody else.
func TestLimitHoldsForShortBursts(t *testing.T) {
	for _, limit := range []float64{0.05, 0.3, 0.8} {
		a := &client{name: "a", Share: Share{Weight: 1, Limit: limit}, kernel: 500 * us, burst: ms, think: 500 * us}
		w := newWorld(t, 1, a)
		w.run(10 * time.Second)
		part := a.done.Seconds() / 10
		t.Logf("limit %.2f: %.2f %%", limit, 100*part)
		if part > limit+0.005 || part < min(limit, 0.55)*0.85 {
			t.Errorf("limit %.2f: %.2f %%", limit, 100*part)
		}
	}
}

func TestNewcomerStartsFair(t *testing.T) {
	a, b := saturated("a", 1), saturated("b", 1)
	b.from = 20 * time.Second
	w := newWorld(t, 1, a, b)
	w.run(b.from)
	if part := a.done.Seconds() / 20; part < 0.99 {
		t.Errorf("alone %.2f %%", 100*part)
	}
	before := a.done
	w.run(500 * ms)
	if part := float64(b.done) / float64(a.done-before+b.done); part < 0.45 || part > 0.56 {
		t.Errorf("the newcomer got %.1f %% of the first half second", 100*part)
	}
}

func TestSleeperEarnsOneTurn(t *testing.T) {
	a, b := saturated("a", 1), saturated("b", 1)
	b.burst, b.think = 300*ms, 5*time.Second
	w := newWorld(t, 3, a, b)
	for range 40 {
		w.run(step)
	}
	w.run(b.until - w.now)
	before, mine := a.done, b.done
	w.run(100 * ms)
	if got := b.done - mine - (a.done - before); got > 25*ms || got < -15*ms {
		t.Errorf("after a sleep %v more than the other in 100 ms", got)
	}
}

func TestPreemption(t *testing.T) {
	// A predicted burst of a tenant that sleeps waits for the minimum, and for
	// what is in flight; nobody waits for a whole turn.
	b := &client{name: "b", Share: Share{Weight: 50}, kernel: 100 * us, burst: 1 * ms, think: 30 * ms}
	w := newWorld(t, 2, saturated("a", 50), b)
	w.run(5 * time.Second)
	slices.Sort(b.latency)
	worst := b.latency[len(b.latency)-1]
	if bound := 2*ms + cap_ + 1*ms + 2*notice + switch_ + 600*us; worst > bound {
		t.Errorf("a burst of 1 ms took %v, more than %v", worst, bound)
	}
	if w.g.System().Preempted == 0 {
		t.Error("nobody was preempted")
	}
}

func TestNobodyStarves(t *testing.T) {
	for n := 2; n <= 8; n++ {
		var clients []*client
		for i := range n {
			c := saturated(names(i), float64(1+i*i))
			if i%3 == 2 {
				c.burst, c.think = 20*ms, 10*ms
			}
			clients = append(clients, c)
		}
		w := newWorld(t, uint64(n), clients...)
		w.run(10 * time.Second)
		for _, c := range clients {
			if bound := time.Duration(2*n) * 100 * ms; c.longest > bound {
				t.Errorf("of %d tenants %s waited %v", n, c.name, c.longest)
			}
		}
	}
}
