package schedule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestClean(t *testing.T) {
	for _, c := range []struct{ in, want Share }{
		{Share{}, Share{Weight: 1, Limit: 1}},
		{Share{Weight: -1, Limit: -1}, Share{Weight: 1, Limit: 1}},
		{Share{Weight: math.NaN(), Limit: math.NaN()}, Share{Weight: 1, Limit: 1}},
		{Share{Weight: math.Inf(1), Limit: 2}, Share{Weight: 1e6, Limit: 1}},
		{Share{Weight: 1e-9, Limit: 1e-9}, Share{Weight: 1e-3, Limit: 1e-3}},
		{Share{Weight: 5, Limit: 0.5, Class: 7, Wait: ms, Held: true},
			Share{Weight: 5, Limit: 0.5, Class: Realtime, Wait: ms, Held: true}},
		{Share{Weight: 5, Limit: 0.5, Class: 1}, Share{Weight: 5, Limit: 0.5, Class: Realtime}},
		{Share{Weight: 5, Limit: 1.5}, Share{Weight: 5, Limit: 1}},
		{Share{Weight: 5, Class: -7}, Share{Weight: 5, Limit: 1, Class: Idle}},
		{Share{Weight: 5, Class: Realtime}, Share{Weight: 5, Limit: 1}},
	} {
		fixture.Equal(t, c.in.clean(), c.want, "%+v", c.in)
	}
}

func TestDefaults(t *testing.T) {
	fixture.Equal(t, New(Config{}).config, Config{Turn: 10 * ms, Minimum: 2 * ms, Drain: 50 * ms}, "the usual configuration")
	if g := New(Config{}).Add(); !g.together { // the first assumption
		t.Error("a new GPU's tenants take turns")
	}
	set := Config{Turn: 1, Minimum: 2, Drain: 3, Turns: true}
	fixture.Equal(t, New(set).config, set, "the configuration")
}

// A tenant whose last session has left has no state any more.
func TestLeave(t *testing.T) {
	d := two(t, Share{}, Share{})
	d.join(Share{}, "a")
	d.pass(20*ms).Leave(d.at, "a")
	if d.decide(); d.find("a").sessions != 1 || !d.Wants("a") {
		t.Error("the tenant lost its state with one of its two sessions")
	}
	d.Changed()
	d.Leave(d.at, "a")
	fixture.If(t, !d.Changed() || d.Wants("a") || d.State("a").Mode != Pause, "gone: %+v", d.State("a"))
	d.decide()
	d.Leave(d.at, "a") // it is gone
	d.Want(d.at, "a")
	d.decide()
	fixture.If(t, d.Wants("a"), "a tenant that left wants the GPU")
	d.pass(silence).shows(map[bool]string{true: "Po", false: "o"}[len(d.tenants) == 2])
	d.Leave(d.at, "b")
	d.decide()
	fixture.If(t, d.wake != 0, "to be called at %v", d.wake)
}

// Nobody waits for a tenant that left during its measurement or its run.
func TestLeaveFreesTheGPU(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide()
	fixture.Stop(t, d.measured == nil, "no tenant is measured")
	d.Leave(d.at, "a")
	fixture.Equal(t, d.measured, nil, "a tenant that left is measured")
	d.decide()
	fixture.Equal(t, d.State("b").Mode == Pause, false, "b pauses:")
	d = newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().pass(5*ms + 1).shows("pp")
	d.Leave(d.at, "a")
	d.decide()
	fixture.If(t, d.State("b").Mode != Run, "%+v", d.State("b"))
}

// Debt outlives the session, and time makes up for it. A newcomer starts without debt.
func TestDebtOutlivesTheSession(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().pass(4 * ms)
	lag := d.Lag("a")
	d.Leave(d.at, "a")
	d.at += ms
	d.join(Share{}, "a")
	if d.decide(); lag >= -ms || d.Lag("a") != lag+ms {
		t.Errorf("it began anew with %v, not %v", d.Lag("a"), lag+ms)
	}
	if a := d.find("a"); a.ever || a.duty != 0 || a.burst != 0 {
		t.Errorf("%+v", *a)
	}
	d.Leave(d.at, "b") // b was owed time
	d.join(Share{}, "b")
	fixture.Equal(t, d.Lag("b"), 0, "a new tenant is owed")
}

// A tenant that left, and is remembered for its debt, receives and sends nothing. Time makes up for the debt,
// and the tenant is forgotten when another comes.
func TestGoneIsRemembered(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	d.find("a").lag = -5 * ms
	d.Leave(0, "a")
	d.Leave(0, "a")
	d.want("a")
	a := d.find("a")
	fixture.Stop(t, a == nil || a.wants || a.sessions != 0, "%+v", a)
	d.at = 4 * ms
	d.join(Share{}, "b")
	fixture.If(t, d.find("a") == nil, "forgotten too early")
	d.at = 10 * ms
	if d.join(Share{}, "c"); d.find("a") != nil {
		t.Errorf("it is remembered for %v", d.Lag("a"))
	}
}

// A report of rest holds at any later time: the length of the wish, the work, and the end of the tenant's claims.
func TestRestLater(t *testing.T) {
	for ago, burst := range map[time.Duration]time.Duration{0: 8 * ms, 3 * ms: 5 * ms, 8 * ms: 0, time.Hour: 0} {
		d := newDesk(t, Config{Turns: true}, 1)
		d.at = time.Second
		d.join(Share{}, "a", "b")
		d.want("a", "b")
		d.decide()
		d.at += 8 * ms
		a := d.find("a")
		a.owed = true
		d.Rest(d.at, "a", Usage{Ago: ago, Solo: 80, SoloTime: 8 * ms})
		fixture.If(t, a.burst != burst || a.rested != time.Second+burst || a.owed || !near(a.pace.cost(), 0.0001),
			"%v ago: a burst of %v until %v, owed %v, %+v", ago, a.burst, a.rested, a.owed, a.pace)
		a.lag = 5 * ms
		d.want("a")
		fixture.If(t, a.lag != 5*ms, "%v ago: it is owed %v", ago, a.lag)
		d.rest("a")
		d.at += 101 * ms
		a.lag = 5 * ms
		d.want("a")
		fixture.If(t, a.lag != 0, "long ago: it is owed %v", a.lag)
	}
}

// A tenant that reports an earlier drain gets back the time booked since then, up to its pause.
func TestDrainedAgo(t *testing.T) {
	for ago, want := range map[time.Duration]time.Duration{0: 13 * ms, -ms: 13 * ms, 3 * ms: 10 * ms, 8 * ms: 5 * ms,
		time.Hour: 5 * ms} {
		d := newDesk(t, Config{Turns: true}, 1)
		d.at = time.Second
		d.join(Share{}, "a", "b")
		d.want("a", "b")
		d.decide().pass(5*ms + 1).shows("pp").pass(8 * ms).shows("pp")
		for range 2 { // the second report has nothing new
			d.Drained(d.at, "a", Usage{Ago: ago, Solo: 50, SoloTime: 5 * ms})
			if s := d.Stats("a"); s.Served != want+1 || s.Charged != want+1 || d.find("a").drains {
				t.Errorf("%v ago: %+v", ago, s)
			}
		}
		c := d.find("a").pace.cost()
		fixture.If(t, !near(c, 0.0001), "a launch takes %v", c)
	}
}

// A tenant that left does not drain, and has no deadline.
func TestGoneDrainsNothing(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().pass(60 * ms).shows("pr")
	a := d.find("a")
	if !a.drains || !a.settled {
		t.Fatalf("%+v", *a)
	}
	if d.Leave(d.at, "a"); a.drains || a.settled || a.nudge != 0 || a.pace != (pace{}) {
		t.Errorf("%+v", *a)
	}
}

// A wait ends when its tenant is held, and begins when the tenant is released. Any other change leaves it as it is.
func TestChangeAndWaits(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().pass(3 * ms)
	for i, c := range []struct {
		share  Share
		waited time.Duration // a millisecond later
		waits  uint64
	}{{Share{Weight: 2}, 4 * ms, 0}, {Share{Held: true}, 4 * ms, 1}, {Share{Held: true, Weight: 2}, 4 * ms, 1},
		{Share{}, 5 * ms, 1}, {Share{Weight: 3}, 6 * ms, 1}} {
		d.Change(d.at, "b", c.share)
		d.at += ms
		d.Look(d.at)
		s := d.Stats("b")
		fixture.If(t, s.Waited != c.waited || s.Waits != c.waits, "%d: %+v", i, s)
	}
}

// A tenant without debt is forgotten. Of those with debt at most 256 are remembered.
func TestSweep(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "there")
	for i := range 300 {
		name := fmt.Sprint("x", i)
		d.join(Share{}, name)
		d.find(name).lag = -ms
		d.Leave(0, name)
	}
	fixture.Equal(t, len(d.tenants), 257, "… are remembered")
	for _, x := range d.tenants {
		x.lag = 0
	}
	d.tenants[3].lag = -1
	d.tenants[1].share.Limit, d.tenants[1].bucket = 0.5, 50*ms-1
	d.tenants[2].share.Limit, d.tenants[2].bucket = 0.5, 50*ms
	empty, full := d.tenants[1].name, d.tenants[2].name
	d.join(Share{}, "new")
	fixture.If(t, len(d.tenants) != 4 || d.find(empty) == nil || d.find(full) != nil || d.find("there") == nil ||
		d.find("new") == nil,
		"%d are remembered", len(d.tenants))
}

func TestChanged(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	for i, c := range []struct {
		do   func()
		want bool
	}{
		{func() {}, false},
		{func() { d.want("a") }, true},
		{func() { d.Want(d.at, "a") }, false},
		{func() { d.Report(d.at, "a", Usage{Launched: 1}) }, false},
		{func() { d.want("b") }, true}, // a has an end now
		{func() { d.rest("b") }, true},
		{func() { d.Leave(d.at, "b") }, true}, // a need not make room
		{func() { d.Leave(d.at, "a") }, true},
	} {
		c.do()
		d.decide()
		fixture.If(t, d.Changed() != c.want || d.Changed(), "%d: want %v", i, c.want)
	}
}

// A time before the last one counts as the last one. A look updates the books without a decision.
func TestLook(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 2)
	d.join(Share{}, "a")
	d.want("a")
	d.decide()
	d.Look(time.Second)
	s := d.Stats("a")
	fixture.Equal(t, s.Served, time.Second-late, "served")
	d.Look(ms)
	d.Want(2*ms, "a")
	is := d.Stats("a")
	fixture.If(t, is != s || d.GPU.now != time.Second, "%+v at %v", is, d.GPU.now)
	wake := d.Decide(0)
	fixture.If(t, wake != 0 && wake <= time.Second, "to be called at %v", wake)
	d.Look(d.GPU.now + 20*time.Second) // longer than the history
	fixture.Equal(t, d.Stats("a").Served, 21*time.Second-late, "served")
}

// A tenant whose hook is silent, or never reports a drain, costs no other tenant its guarantee.
func TestBadHooks(t *testing.T) {
	t.Parallel()
	const long = 6 * time.Second
	for what, bad := range map[string]func(*program){
		"mute":  func(p *program) { p.mute = true },
		"stuck": func(p *program) { p.stuck = true },
		"both":  func(p *program) { p.mute, p.stuck = true, true },
	} {
		for _, name := range []string{"queue", "jax"} {
			a, b := kind("queue", 50), kind(name, 50)
			a.name, b.name = "a", "b"
			bad(a)
			w := newWorld(t, false, nil, a, b)
			w.run(long)
			part := b.rate(begin, long) / alone(t, name).lone
			t.Logf("%s has %.3f beside who is %s: %+v", name, part, what, w.gpus[0].g.Stats("a"))
			if part < 0.45 {
				t.Errorf("%s has %.3f beside who is %s", name, part, what)
			}
		}
	}
}

// A tenant with kernels so long that others wait for them owes that time.
func TestLongKernels(t *testing.T) {
	t.Parallel()
	const long = 10 * time.Second
	for weight, least := range map[float64]float64{30: 0.68, 10: 0.87} {
		for _, kernel := range []time.Duration{40 * ms, 100 * ms} {
			a, b := kind("queue", weight), kind("queue", 100-weight)
			a.name, b.name, a.kernel, a.count = "a", "b", kernel, 1
			newWorld(t, false, nil, a, b).run(long)
			if part := b.rate(begin, long) / alone(t, "queue").lone; part < least {
				t.Errorf("%g %% beside kernels of %v: %.3f, at least %.2f", 100-weight, kernel, part, least)
			}
		}
	}
}

// A newcomer gets its part at once, and a tenant that was alone owes nothing for that time.
func TestNewcomerStartsFair(t *testing.T) {
	t.Parallel()
	a, b := kind("queue", 1), kind("queue", 1)
	a.name, b.name, b.from = "a", "b", 3*time.Second
	newWorld(t, false, nil, a, b).run(5 * time.Second)
	all := alone(t, "queue").lone
	fixture.AtLeast(t, a.rate(0, b.from)/all, 0.99, "its part alone")
	part := b.rate(b.from, b.from+500*ms) / all
	fixture.If(t, part < 0.43 || part > 0.57, "the newcomer has %.3f in the first half second", part)
}

// operate applies one operation, taken from three bytes.
func operate(t testing.TB, h *Scheduler, now *time.Duration, op, who, arg byte) {
	name, g := string(rune('a'+who%6)), h.gpus[int(who/8)%len(h.gpus)]
	d := time.Duration(arg) * 97 * us
	*now += d / 4
	known, was := g.find(name), g.Stats(name)
	u := Usage{Launched: uint64(arg) * 9, Solo: uint64(arg), SoloTime: d, Busy: d * time.Duration(arg%3-1), Longest: d,
		Ago: d / 2 * time.Duration(arg%5)}
	switch op % 12 {
	case 0:
		g.Join(*now, name, Share{Weight: float64(arg) - 2, Limit: float64(arg%5) / 4, Class: Class(who%4) - 1})
	case 1:
		g.Leave(*now, name)
	case 2, 3:
		g.Want(*now, name)
	case 4:
		g.Rest(*now, name, u)
	case 5:
		g.Drained(*now, name, u)
	case 6:
		g.Report(*now, name, u)
	case 7:
		g.Change(*now, name, Share{Weight: float64(who), Limit: float64(arg) / 200, Class: Class(arg%5) - 2,
			Wait: d * time.Duration(arg%2), Held: op%4 == 0})
	case 8:
		*now += time.Duration(arg) * 10 * ms
	case 9:
		*now = max(*now-ms, 0)
	case 10:
		g.Link(*now, h.gpus[int(arg)%len(h.gpus)], name)
	case 11:
		h.Look(*now)
	}
	wake := h.Decide(*now)
	hold(t, h, wake)
	if op&16 != 0 && wake != 0 {
		*now = max(*now, wake)
		hold(t, h, h.Decide(*now))
	}
	if known != nil && known == g.find(name) {
		grew(t, name, was, g.Stats(name))
	}
	for _, n := range []string{"a", "b", "nobody"} {
		a, due := g.Shares(n, time.Second)
		fixture.Stop(t, a != a || due < 0 || due > 1.0001, "%s: shares %v of %v", n, a, due)
	}
}

// grew fails if a counter decreased.
func grew(t testing.TB, name string, was, is Stats) {
	t.Helper()
	if is.Charged < was.Charged || is.Served < was.Served || is.Wanted < was.Wanted || is.Waited < was.Waited ||
		is.Throttled < was.Throttled ||
		is.Overrun < was.Overrun || is.Convoy < was.Convoy || is.Turns < was.Turns || is.Overruns < was.Overruns ||
		is.Waits < was.Waits || is.Late < was.Late || is.Late > is.Waits {
		t.Fatalf("counters of %s went from %+v to %+v", name, was, is)
	}
}

func hosts(c Config, gpus int) (*Scheduler, *time.Duration) {
	h := New(c)
	for range gpus {
		h.Add()
	}
	return h, new(time.Duration)
}

func TestRandomOperations(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		h, now := hosts(Config{Turns: seed%3 == 0, Slices: true}, 1+int(seed%4))
		for range 1000 {
			x := r.Uint32()
			operate(t, h, now, byte(x), byte(x>>8), byte(x>>16))
		}
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 0, 3, 0, 1, 3, 2, 0, 9, 2, 1, 9, 8, 0, 40, 4, 0, 90})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) == 0 {
			return
		}
		h, now := hosts(Config{Turns: ops[0]&8 != 0, Slices: true}, 1+int(ops[0]%3))
		for ; len(ops) >= 3; ops = ops[3:] {
			operate(t, h, now, ops[0], ops[1], ops[2])
		}
	})
}

// The same inputs give the same states.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	play := func() string {
		r := rand.New(rand.NewPCG(9, 9))
		h, now := hosts(Config{}, 3)
		var log strings.Builder
		for range 700 {
			x := r.Uint32()
			operate(t, h, now, byte(x), byte(x>>8), byte(x>>16))
			for _, g := range h.gpus {
				fmt.Fprint(&log, g.State("a"), g.State("b"), g.Lag("c"), ";")
			}
		}
		return log.String()
	}
	fixture.Equal(t, play(), play(), "the first of two runs")
}

// crowd returns a desk whose tenants want a GPU permanently. A step is half a
// millisecond, with a drain or a report of each.
func crowd(t testing.TB, n int) (d *desk, step func()) {
	d = newDesk(t, Config{}, 1)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("t%02d", i)
		d.join(Share{Weight: float64(1 + i%3)}, names[i])
		d.want(names[i])
	}
	d.decide()
	return d, func() {
		d.at += 500 * us
		for _, name := range names {
			if d.State(name).Mode == Pause {
				d.Drained(d.at, name, Usage{Launched: 10})
			} else {
				d.Report(d.at, name, Usage{Launched: 10})
			}
		}
		d.wake = d.Decide(d.at)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	d, step := crowd(t, 16)
	for range 2000 {
		step()
	}
	turns := d.turns
	n := testing.AllocsPerRun(2000, step)
	fixture.If(t, n != 0 || d.turns < turns+20, "%v allocations in each of %d turns", n, d.turns-turns)
}

func BenchmarkStep16(b *testing.B) {
	_, step := crowd(b, 16)
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}

// A tenant that leaves and returns again and again has no more than its part.
// Missing knowledge about it does not let it go first for ever.
func TestChurn(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Config{}, 1)
	d.join(Share{Weight: 9}, "a")
	d.want("a")
	d.decide()
	for d.at < 3*time.Second {
		d.join(Share{}, "b")
		d.want("b")
		d.decide()
		for end := d.at + 60*ms; d.at < end; {
			for _, name := range []string{"a", "b"} {
				if d.find(name).drains {
					d.drain(name)
				}
			}
			d.decide().pass(ms)
		}
		d.Leave(d.at, "b")
		d.decide().pass(ms)
	}
	fixture.AtMost(t, d.Stats("b").Served.Seconds()/3, 0.2, "it has")
}
