package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// grantTo lets a, of two that want the GPU for good, have the first turn.
func grantTo(t *testing.T, c Config) *GPU {
	t.Helper()
	g := New(c)
	for _, name := range []string{"a", "b"} {
		g.Join(0, name, Share{})
	}
	for _, name := range []string{"a", "b"} {
		g.Ask(0, name, 0, 0)
	}
	if wake := decide(t, g, 0); wake != 10*ms || g.State("a") != (State{Mode: Run, Turn: 1, End: 10 * ms}) || g.State("b").Mode != Pause {
		t.Fatalf("a has %+v, b %+v, to be called at %v", g.State("a"), g.State("b"), wake)
	}
	return g
}

func TestLoneSessionIsOpen(t *testing.T) {
	g := New(Config{})
	g.Join(0, "a", Share{})
	if wake := decide(t, g, 0); wake != 0 || g.State("a").Mode != Open || g.State("a").Watch {
		t.Fatalf("alone: %+v, to be called at %v", g.State("a"), wake)
	}
	turn := g.State("a").Turn
	g.Join(ms, "a", Share{})
	if decide(t, g, ms); g.State("a") != (State{Mode: Run, Turn: turn}) {
		t.Errorf("with a second session: %+v", g.State("a"))
	}
	g.Leave(2*ms, "a")
	if decide(t, g, 2*ms); g.State("a").Mode != Open {
		t.Errorf("alone again: %+v", g.State("a"))
	}
	g.Change(3*ms, "a", Share{Limit: 0.5})
	if decide(t, g, 3*ms); g.State("a").Mode != Run || g.State("a").End == 0 {
		t.Errorf("with a limit: %+v", g.State("a"))
	}
	g.Leave(4*ms, "a")
	if wake := decide(t, g, 4*ms); wake != 0 || g.State("a").Mode != Pause {
		t.Errorf("gone: %+v, to be called at %v", g.State("a"), wake)
	}
}

func TestTurnIsPausedDrainedAndCharged(t *testing.T) {
	g := grantTo(t, Config{})
	if wake := decide(t, g, 10*ms); wake != 60*ms || g.State("a").Mode != Pause || g.State("b").Mode != Pause {
		t.Fatalf("at its end: a %+v, b %+v, to be called at %v", g.State("a"), g.State("b"), wake)
	}
	g.Yield(11*ms, "a", Usage{Turn: 1, Busy: 10700 * us}, false)
	if wake := decide(t, g, 11*ms); wake != 21*ms || g.State("b").Mode != Run {
		t.Fatalf("drained: b %+v, to be called at %v", g.State("b"), wake)
	}
	if s := g.Stats("a"); s.Charged != 10700*us || s.Turns != 1 || s.Overrun != ms || s.Overruns != 0 {
		t.Errorf("a: %+v", s)
	}
	if s := g.Stats("b"); s.Waited != 11*ms {
		t.Errorf("b: %+v", s)
	}
	if s := g.System(); s.Handover != 300*us {
		t.Errorf("%+v", s)
	}
}

func TestTurnIsExtendedWithoutADrain(t *testing.T) {
	g := New(Config{})
	g.Join(0, "a", Share{Weight: 9})
	g.Join(0, "b", Share{Weight: 1})
	g.Ask(0, "a", 0, 0)
	g.Ask(0, "b", 0, 0)
	g.find("b").v = 0.005 // a is next again after its first turn
	decide(t, g, 0)
	if wake := decide(t, g, 10*ms); wake != 20*ms || g.State("a") != (State{Mode: Run, Turn: 1, End: wake}) {
		t.Errorf("a has %+v, to be called at %v", g.State("a"), wake)
	}
}

func TestChargeIsBoundedByTheClock(t *testing.T) {
	for _, c := range []struct{ says, want time.Duration }{{0, 11*ms - slack}, {-time.Hour, 11*ms - slack}, {time.Hour, 11 * ms}} {
		g := grantTo(t, Config{})
		decide(t, g, 10*ms)
		g.Yield(11*ms, "a", Usage{Turn: 1, Busy: c.says}, false)
		if s := g.Stats("a"); s.Charged != c.want {
			t.Errorf("who says %v is charged %v, not %v", c.says, s.Charged, c.want)
		}
	}
}

func TestDrainDeadline(t *testing.T) {
	g := grantTo(t, Config{})
	decide(t, g, 10*ms)
	if decide(t, g, 60*ms); g.State("b").Mode != Run {
		t.Fatalf("past the deadline b has %+v", g.State("b"))
	}
	if s := g.Stats("a"); s.Overruns != 1 || s.Charged != 60*ms {
		t.Errorf("%+v", s)
	}
	g.Yield(65*ms, "a", Usage{Turn: 1}, false) // late: it was in b's way for 5 ms
	if s := g.Stats("a"); s.Charged != 65*ms || s.Overrun != 55*ms {
		t.Errorf("%+v", s)
	}
	if decide(t, g, 65*ms); g.State("b").Mode != Run {
		t.Errorf("a late Yield took b's turn: %+v", g.State("b"))
	}
}

func TestYieldOfAnotherTurnSaysNothing(t *testing.T) {
	g := grantTo(t, Config{})
	g.Yield(ms, "a", Usage{Turn: 7}, true)
	g.Yield(ms, "b", Usage{Turn: 1}, true)
	g.Yield(ms, "nobody", Usage{}, true)
	if decide(t, g, ms); g.State("a").Mode != Run || !g.find("b").wants {
		t.Errorf("a has %+v", g.State("a"))
	}
}

func TestIdleAndGonePassTheTurnOn(t *testing.T) {
	g := grantTo(t, Config{})
	g.Yield(3*ms, "a", Usage{Turn: 1, Busy: 3 * ms}, true)
	if wake := decide(t, g, 3*ms); wake != 0 || g.State("b") != (State{Mode: Run, Turn: 2}) {
		t.Errorf("after an idle Yield b has %+v, to be called at %v", g.State("b"), wake)
	}
	g = grantTo(t, Config{})
	g.Join(ms, "c", Share{})
	g.Leave(3*ms, "a")
	if decide(t, g, 3*ms); g.State("b").Mode != Run || g.Stats("a").Charged != 3*ms {
		t.Errorf("after a left b has %+v", g.State("b"))
	}
}

func TestTurnIsAsLongAsTheBurst(t *testing.T) {
	for _, c := range []struct{ burst, want time.Duration }{
		{0, 10 * ms}, {5 * ms, 5500 * us}, {100 * us, ms}, {13 * ms, 14300 * us}, {14 * ms, 10 * ms}, {-ms, 10 * ms},
	} {
		g := New(Config{})
		g.Join(0, "a", Share{})
		g.Join(0, "b", Share{})
		g.Ask(0, "a", c.burst, 0)
		g.Ask(0, "b", 0, 0)
		if decide(t, g, 0); g.State("a").End != c.want {
			t.Errorf("a burst of %v: a turn of %v, not %v", c.burst, g.State("a").End, c.want)
		}
	}
}

func TestRoundIsBounded(t *testing.T) {
	g := New(Config{})
	for i := range 25 {
		g.Join(0, names(i), Share{})
		g.Ask(0, names(i), 0, 0)
	}
	if decide(t, g, 0); g.State("a").End != 4*ms {
		t.Errorf("one turn of 25 in a round of 100 ms is %v", g.State("a").End)
	}
}

func TestEmptyBucketWaitsForATurnsWorth(t *testing.T) {
	g := New(Config{})
	g.Join(0, "a", Share{Limit: 0.5})
	g.Join(0, "b", Share{})
	g.Ask(0, "a", 0, 0)
	end := decide(t, g, 0) // 5 ms are in it, and 5 more drip in meanwhile
	if end != 10*ms || g.State("a").End != end {
		t.Fatalf("a's turn ends at %v", end)
	}
	decide(t, g, end)
	g.Yield(end, "a", Usage{Turn: g.State("a").Turn, Busy: end}, false)
	wake := decide(t, g, end)
	if wake < 20*ms || wake > 20*ms+10 || g.State("a").Mode != Pause {
		t.Fatalf("with its limit used up a has %+v, to be called at %v", g.State("a"), wake)
	}
	if decide(t, g, wake); g.State("a").Mode != Run || g.Stats("a").Throttled < 10*ms {
		t.Errorf("a turn's worth later: %+v, %+v", g.State("a"), g.Stats("a"))
	}
}

// Who gives its turn back when its limit is used up does not get another one
// before that has let enough in again.
func TestYieldWithTheBucketEmptyIsNoWayAroundALimit(t *testing.T) {
	for _, idle := range []bool{false, true} {
		g := New(Config{})
		g.Join(0, "a", Share{Limit: 0.5})
		g.Join(0, "b", Share{})
		g.Ask(0, "a", 0, 0)
		end := decide(t, g, 0)
		g.Yield(end, "a", Usage{Turn: g.State("a").Turn, Busy: end}, idle)
		g.Ask(end, "a", 0, 0)
		if wake := decide(t, g, end); wake < 20*ms || wake > 20*ms+10 || g.State("a").Mode != Pause {
			t.Errorf("idle %v: with its limit used up a has %+v, to be called at %v", idle, g.State("a"), wake)
		}
	}
}

func TestTrialsBackOff(t *testing.T) {
	r := trial{retry: time.Hour, backoff: 16 * time.Second}
	r.reset(time.Minute)
	if r.backoff != 0 || r.retry != time.Minute+backoffLeast {
		t.Errorf("with other tenants: %+v", r)
	}
	g, now := New(Config{}), time.Duration(0)
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		g.together.retry = 0
		together(t, g, &now)
		now += trialTime
		decide(t, g, now)
		if got := g.together.retry - now; got != want*time.Second {
			t.Errorf("the next trial after %v, not %v s", got, int64(want))
		}
		now += 60 * ms
		decide(t, g, now)
	}
}

func TestDebtOutlivesTheSession(t *testing.T) {
	g := grantTo(t, Config{})
	decide(t, g, 10*ms)
	decide(t, g, 60*ms) // a never yields: 60 ms are charged
	g.Leave(61*ms, "a")
	g.Join(62*ms, "a", Share{})
	g.Ask(62*ms, "a", 0, 0)
	decide(t, g, 62*ms)
	if a, b := g.find("a").v, g.virtual(g.find("b"), g.now); a < b+0.05 {
		t.Errorf("a begins anew at %.3f beside b at %.3f", a, b)
	}
	for i := range 1000 { // what owes nothing is forgotten
		name := fmt.Sprint("x", i)
		g.Join(63*ms, name, Share{Limit: 0.5})
		g.Leave(63*ms, name)
	}
	if len(g.tenants) > 300 {
		t.Errorf("%d tenants are remembered", len(g.tenants))
	}
}

func TestChangeKeepsTheLag(t *testing.T) {
	g := grantTo(t, Config{})
	decide(t, g, 10*ms)
	g.Yield(11*ms, "a", Usage{Turn: 1, Busy: 11 * ms}, false)
	decide(t, g, 11*ms)
	was := g.find("a").v - g.floor(g.find("a"))
	g.Change(11*ms, "a", Share{Weight: 4})
	if is := g.find("a").v - g.floor(g.find("a")); is != was/4 {
		t.Errorf("ahead by %v, now %v", was, is)
	}
}

func TestSharesOverWindows(t *testing.T) {
	a, b := saturated("a", 30), saturated("b", 70)
	w := newWorld(t, 1, a, b)
	w.run(12 * time.Second)
	for _, window := range []time.Duration{time.Second, 10 * time.Second} {
		for _, c := range []*client{a, b} {
			actual, target := w.g.Shares(c.name, window)
			if want := c.Weight / 100; actual < want-0.03 || actual > want+0.01 || target < want-0.001 || target > want+0.001 {
				t.Errorf("%s over %v: %.3f of %.3f", c.name, window, actual, target)
			}
		}
	}
	g := New(Config{})
	g.Join(0, "a", Share{})
	g.Decide(0)
	g.Decide(time.Hour) // a long time without a call
	if actual, target := g.Shares("a", 10*time.Second); actual < 0.999 || actual > 1.001 || target != 1 {
		t.Errorf("alone: %.4f of %.4f", actual, target)
	}
	if s := g.Stats("a"); s.Charged != time.Hour-slack {
		t.Errorf("alone for an hour: %v", s.Charged)
	}
}

// operate does one operation, taken from three bytes.
func operate(t testing.TB, g *GPU, now *time.Duration, op, who, arg byte) {
	name, floors := names(int(who%6)), g.floors
	d := time.Duration(arg) * 97 * us
	*now += d / 4
	turn := g.State(name).Turn
	known, was := g.find(name), g.Stats(name)
	u := Usage{Turn: turn - uint64(arg%11/10), Busy: d * 3, Launched: uint64(arg) * 9, Marks: uint32(arg), Behind: uint32(arg%3) * uint32(arg/9)}
	switch op % 10 {
	case 0:
		g.Join(*now, name, Share{Weight: float64(arg) - 2, Limit: float64(arg%5) / 4, Class: Class(who%4) - 1})
	case 1:
		g.Leave(*now, name)
	case 2, 3:
		g.Ask(*now, name, d, d)
	case 4:
		g.Yield(*now, name, u, false)
	case 5:
		g.Yield(*now, name, u, true)
	case 6:
		g.Report(*now, name, u)
	case 7:
		g.Change(*now, name, Share{Weight: float64(who), Limit: float64(arg) / 200, Class: Class(arg%5) - 2, Wait: d, Held: op%4 == 0})
	case 8:
		*now += time.Duration(arg) * 10 * ms
	case 9:
		*now = max(*now-ms, 0)
	}
	if wake := decide(t, g, *now); op&16 != 0 && wake != 0 {
		*now = max(*now, wake)
		decide(t, g, *now)
	}
	held(t, g)
	if is := g.Stats(name); known != nil && known == g.find(name) && (is.Waited < was.Waited || is.Charged < was.Charged || is.Late > is.Waits) {
		t.Fatalf("counters of %s went from %+v to %+v", name, was, is)
	}
	for i, floor := range floors {
		if g.floors[i] < floor {
			t.Fatalf("the floors of virtual time fell from %v to %v", floors, g.floors)
		}
	}
}

// held fails where the books are wrong.
func held(t testing.TB, g *GPU) {
	t.Helper()
	for _, o := range g.tenants {
		a, due := g.Shares(o.name, time.Second)
		if o.v != o.v || o.stats.Charged < 0 || o.bucket > g.brim(o) || a < 0 || due < 0 || due > 1.0001 {
			t.Fatalf("%s: %+v, shares %v %v", o.name, *o, a, due)
		}
	}
	if len(g.tenants) > 512 || g.system.Handover < 0 {
		t.Fatalf("%d tenants, %+v", len(g.tenants), g.system)
	}
}

func TestRandomOperations(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		g, now := New(Config{}), time.Duration(0)
		for range 1000 {
			x := r.Uint32()
			operate(t, g, &now, byte(x), byte(x>>8), byte(x>>16))
		}
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 0, 3, 0, 1, 3, 2, 0, 9, 2, 1, 9, 8, 0, 40, 4, 0, 90})
	f.Fuzz(func(t *testing.T, ops []byte) {
		g, now := New(Config{}), time.Duration(0)
		for ; len(ops) >= 3; ops = ops[3:] {
			operate(t, g, &now, ops[0], ops[1], ops[2])
		}
	})
}

// The same inputs give the same turns.
func TestDeterministic(t *testing.T) {
	play := func() string {
		r := rand.New(rand.NewPCG(9, 9))
		g, now, log := New(Config{}), time.Duration(0), ""
		for range 3000 {
			x := r.Uint32()
			operate(t, g, &now, byte(x), byte(x>>8), byte(x>>16))
			log += fmt.Sprint(g.State("a"), g.State("b"), ";")
		}
		return log
	}
	if first, second := play(), play(); first != second {
		t.Error("two runs differ")
	}
}

func crowd(n int) (*GPU, func()) {
	g, now := New(Config{}), time.Duration(0)
	for i := range n {
		g.Join(0, names(i), Share{Weight: float64(1 + i%3)})
		g.Ask(0, names(i), 0, 0)
	}
	wake := g.Decide(0)
	return g, func() { // a turn: its end, the drain, the next grant
		now = wake
		g.Decide(now)
		for _, t := range g.tenants {
			if len(g.on) > 0 && g.on[0] == t {
				now += ms
				g.Yield(now, t.name, Usage{Turn: t.state.Turn, Busy: 10 * ms, Marks: 20, Behind: 20}, false)
				break
			}
		}
		wake = g.Decide(now)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	g, turn := crowd(16)
	if n := testing.AllocsPerRun(1000, turn); n != 0 || g.turns < 1000 || g.together.on {
		t.Errorf("%v allocations in each of %d turns", n, g.turns)
	}
}

func BenchmarkTurnOf16(b *testing.B) {
	_, turn := crowd(16)
	b.ReportAllocs()
	for b.Loop() {
		turn()
	}
}

func BenchmarkDecide16(b *testing.B) {
	g, _ := crowd(16)
	b.ReportAllocs()
	now := time.Duration(0)
	for b.Loop() {
		now += 100
		g.Decide(now)
	}
}
