package schedule

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// two returns a desk on which a and b want the GPU permanently.
func two(t testing.TB, a, b Share) *desk {
	d := newDesk(t, Config{}, 1)
	d.join(a, "a")
	d.join(b, "b")
	d.decide().know()
	d.want("a", "b")
	return d.decide()
}

func TestLoneTenantIsOpen(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	if d.decide().shows("O"); d.wake != 0 || d.State("a") != (State{Mode: Open, Turn: 1}) {
		t.Errorf("%+v, to be called at %v", d.State("a"), d.wake)
	}
	d.join(Share{}, "a") // another session of the same tenant
	d.decide().shows("O")
	d.at = ms
	d.join(Share{}, "b") // a session that wants nothing
	d.decide().know().shows("OR")
	d.at = 2 * ms
	d.want("b")
	d.decide().shows("rr") // a is assumed to have work
	s := d.State("a")
	fixture.If(t, !s.Beside || s.Turn != 1, "%+v", s)
}

// A tenant is alone again only after the others wanted nothing for a second.
func TestOpenAfterSilence(t *testing.T) {
	d := two(t, Share{}, Share{})
	d.pass(time.Second)
	d.rest("b")
	rested := d.at
	if d.decide(); d.State("a").Mode != Run || d.State("a").Beside || d.State("a").Haste {
		t.Errorf("b rests: %+v", d.State("a"))
	}
	for d.at < rested+silence-1 {
		d.pass(min(100*ms, rested+silence-1-d.at))
		fixture.Stop(t, d.State("a").Mode != Run, "%v after b rests: %+v", d.at-rested, d.State("a"))
	}
	fixture.Equal(t, d.wake, rested+silence, "to be called at")
	d.pass(1).shows("oR")
	d.Leave(d.at, "b")
	d.decide().shows("o")
	d.Change(d.at, "a", Share{Limit: 0.5})
	d.decide().shows("r")
	d.Change(d.at, "a", Share{Held: true})
	d.decide().shows("p")
	d.Change(d.at, "a", Share{})
	d.decide().shows("o")
}

// A tenant counts only after its first wish for the GPU.
func TestWhoCountsAsAlone(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a", "b")
	d.decide().shows("RR") // neither ever wanted anything, so both may begin
	d.want("b")
	d.decide().know().shows("Ro") // only b has ever wanted the GPU
	d.rest("b")
	d.decide().shows("RO")
	d.want("a")
	d.decide().shows("rr")
	d = newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	d.join(Share{Wait: 5 * ms}, "b")
	d.want("a")
	d.decide().shows("rR") // b must be able to go first at once
	s := d.State("a")
	fixture.If(t, !s.Urgent || s.Haste || s.Beside, "beside who may come at any time: %+v", s)
}

func TestRealtimeGoesFirst(t *testing.T) {
	d := two(t, Share{}, Share{Class: Realtime, Limit: 0.5})
	d.shows("pr")
	fixture.If(t, d.wake > d.find("b").bucket*2+ms || d.System().Preempted != 1 && d.State("a").Turn != 0,
		"to be called at %v, %+v", d.wake, d.System())
	d.drain("a")
	d.pass(5 * ms).shows("pr")
	d.pass(6 * ms).shows("pp") // its bucket held 5 ms' worth, and received as much
	d.drain("b")
	d.decide().shows("rp")
	stats := d.Stats("b")
	for d.State("b").Mode == Pause {
		d.at = d.wake
		d.decide()
	}
	if d.shows("pr"); d.Stats("b").Throttled <= stats.Throttled || d.System().Preempted == 0 {
		t.Errorf("%+v, %+v", d.Stats("b"), d.System())
	}
	fixture.Equal(t, (Share{Class: Realtime}).clean().Class, Normal, "the class of a tenant without a limit")
}

// A realtime tenant does not wait for others to drain.
func TestRealtimeDoesNotWaitForDrains(t *testing.T) {
	for _, c := range []struct {
		share Share
		want  string
	}{{Share{Class: Realtime, Limit: 0.5}, "pr"}, {Share{Wait: ms}, "pr"}} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{}, "a")
		d.join(c.share, "b")
		d.want("a")
		d.decide().shows("rR").pass(20 * ms)
		d.want("b")
		d.decide()
		d.shows(c.want)
		fixture.If(t, !d.find("a").drains, "%+v: a has nothing outstanding", c.share)
	}
}

// An idle tenant runs only while no other tenant wants the GPU, and not beside them.
func TestIdleRunsAlone(t *testing.T) {
	d := two(t, Share{Class: Idle}, Share{})
	d.pass(20 * ms)
	if d.drain("a"); true {
		d.decide().shows("pr")
	}
	d.pass(10 * time.Second)
	if s := d.Stats("a"); s.Served > 20*ms || d.Lag("a") > 0 {
		t.Errorf("%+v, is owed %v", s, d.Lag("a"))
	}
	d.rest("b")
	d.decide().shows("rR") // b may begin at once
	d.pass(ms)
	d.want("b")
	d.decide().shows("pr")
	a, target := d.Shares("b", time.Second)
	fixture.If(t, a < 0.98 || target < 0.98, "b has %.2f of %.2f", a, target)
}

// A tenant whose launches must not wait goes first, until it is ahead by a turn.
func TestWaitGoesFirst(t *testing.T) {
	d := two(t, Share{}, Share{Wait: 5 * ms})
	from := d.at
	for d.State("b").Mode != Pause && d.at < time.Second {
		if d.pass(100 * us); d.find("a").drains {
			d.drain("a")
		}
	}
	lag := d.Lag("b")
	fixture.If(t, lag > -10*ms || lag < -12*ms, "it goes first for %v, until it is ahead by %v", d.at-from, -lag)
	d.drain("b")
	for d.decide(); d.State("b").Mode == Pause && d.at < time.Second; {
		d.pass(100 * us)
	}
	lag = d.Lag("b")
	fixture.If(t, lag < -10*ms-100*us, "again while it is ahead by %v", -lag)
}

func TestHeldGetsNothing(t *testing.T) {
	d := two(t, Share{}, Share{})
	d.Change(d.at, "a", Share{Held: true})
	d.decide()
	fixture.If(t, d.State("a").Mode != Pause, "held: %+v", d.State("a"))
	d.drain("a")
	d.pass(5 * ms)
	was := d.Stats("a")
	d.pass(time.Second)
	if is := d.Stats("a"); is.Waited != was.Waited || is.Served > was.Served+late || d.Lag("a") > 10*ms {
		t.Errorf("what held it was counted: %+v, then %+v", was, is)
	}
	fixture.Equal(t, d.find("b").part, 1, "b's part is")
	d.rest("b")
	d.pass(2 * time.Second).shows("pR") // not open: a wants the GPU as soon as it may
	d.Change(d.at, "a", Share{})
	d.decide().shows("oR")
	is := d.Stats("a")
	fixture.If(t, is.Waited != was.Waited || is.Late != 0, "held no more: %+v", is)
	d = newDesk(t, Config{}, 1)
	d.join(Share{Held: true}, "a")
	d.decide().shows("P")
}

// A running tenant is not interrupted before its minimum, however much others are owed.
func TestMinimum(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().shows("rp")
	d.find("b").lag, d.dirty = 50*ms, true
	d.decide()
	d.pass(2*ms - 1).shows("rp")
	d.pass(1).shows("pp")
	d.drain("a")
	d.decide().shows("pr")
	d.pass(ms)
	d.find("a").lag, d.find("b").lag = 50*ms, 0 // it began later
	d.Report(d.at, "b", Usage{})
	d.decide().pass(ms - 1).shows("pr")
	d.pass(1).shows("pp")
}

// In turns mode one tenant runs at a time, between half a turn ahead and half a turn behind.
func TestTurns(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.decide().shows("PP")
	d.want("a")
	d.decide().shows("rP")
	s := d.State("a")
	fixture.If(t, s != (State{Mode: Run, Turn: 1}) || d.Changed() == false || d.Changed(), "alone: %+v", s)
	d.want("b")
	d.decide().shows("rp")
	s = d.State("a")
	fixture.If(t, s.End != 5*ms+1 || !s.Haste || s.Beside || !d.Changed(), "beside one that waits: %+v", s)
	d.pass(5*ms + 1).shows("pp")
	d.drain("a")
	d.decide().shows("pr")
	s = d.State("b")
	fixture.If(t, s.End < d.at+10*ms || s.End > d.at+10*ms+10, "at %v b ends at %v", d.at, s.End)
	fixture.Equal(t, d.System().Handover, 0, "the handover")
	d.rest("b")
	d.decide().shows("rP")
}

// A tenant that has turns may be a little late for the next one. Its part is
// owed to it meanwhile, and the running tenant is expected to make room.
func TestLateForATurn(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{Weight: 4}, "a")
	d.join(Share{}, "b")
	d.want("a", "b")
	d.decide()
	d.find("a").lag, d.find("b").lag = 0, 0
	d.rest("a")
	d.decide().shows("Pr")
	s := d.State("b")
	fixture.If(t, s.End != d.at+4*ms || s.Haste, "with a fifth of a round of 20 ms: %+v", s)
	d.Look(d.at + 5*ms)
	a, b := d.Lag("a"), d.Lag("b")
	fixture.If(t, a != 4*ms || b != -4*ms, "after 5 ms a is owed %v, b %v", a, b)
	fixture.Equal(t, d.Stats("a").Wanted, 0, "a wanted the GPU for")
	d.pass(linger)
	fixture.Equal(t, d.State("b").End, 0, "for who does not come back room is made until")
}

// The wait for a drain has a deadline. Undrained work is charged after that.
func TestDrainDeadline(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().pass(5*ms + 1).shows("pp")
	d.pass(50*ms - 1).shows("pp")
	s := d.Stats("a")
	fixture.If(t, s.Overruns != 0 || s.Overrun != 0, "%+v", s)
	d.pass(1).shows("pr")
	d.pass(3 * ms)
	s = d.Stats("a")
	fixture.If(t, s.Overruns != 1 || s.Overrun != 3*ms, "%+v", s)
	d.drain("a")
	d.decide()
	fixture.If(t, d.System().Together != 3*ms || d.find("a").settled, "%+v", d.System())
	d.pass(2 * ms)
	s = d.Stats("a")
	fixture.If(t, s.Overrun != 3*ms || s.Charged < 45*ms, "%+v", s)
}

// A tenant that is stopped in its turn costs the others one drain, and has its part again when it continues.
func TestStopped(t *testing.T) {
	t.Parallel()
	a := &program{name: "a", kernel: 100 * us, cpu: 5 * us, count: 10, ahead: true}
	b := &program{name: "b", kernel: 100 * us, cpu: 5 * us, count: 10, ahead: true, stops: 1 * time.Second,
		goes: 3 * time.Second}
	w := newWorld(t, false, nil, a, b)
	g := w.gpus[0].g
	w.run(1 * time.Second)
	before, done := g.Stats("b").Overruns, a.ranks[0].done
	w.run(2 * time.Second)
	fixture.Equal(t, g.Stats("b").Overruns-before, 1, "a tenant that is stopped overran … times")
	fixture.AtLeast(t, a.ranks[0].done-done, 1900*ms, "the other one had the GPU for … of 2 s")
	fixture.AtMost(t, g.Stats("b").Waited, time.Second, "that it was stopped counts as a wait of")
	done = b.ranks[0].done
	w.run(1 * time.Second)
	got := b.ranks[0].done - done
	fixture.If(t, got < 400*ms || got > 600*ms, "when it goes on it has %v of 1 s", got)
}

// A tenant that speaks while others wait for it, as during a long kernel, may
// run again. A silent one may run again after it was heard.
func TestMute(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	// turn lets the first tenant have its turn, and drain, until the other runs.
	turn := func(runs, other string) {
		t.Helper()
		for range 1000 {
			if d.pass(ms); d.State(other).Mode == Run {
				return
			}
			if d.State(runs).Mode == Pause && d.find(runs).drains {
				d.drain(runs)
				d.decide()
			}
		}
		t.Fatalf("%s is not let run", other)
	}
	d.decide().pass(5*ms + 1).shows("pp")
	d.Report(d.at, "a", Usage{})
	d.pass(50 * ms).shows("pr")
	fixture.If(t, d.State("a").Mute || d.Stats("a").Overruns != 1, "a tenant that answered counts as stopped")
	d.drain("a")
	turn("b", "a")
	for range 40 { // and now it is stopped
		d.pass(5 * ms)
		d.Report(d.at, "b", Usage{})
	}
	lag := d.find("a").lag
	if d.shows("pr"); !d.State("a").Mute || d.Stats("a").Overruns != 2 {
		t.Errorf("what it said before its turn counts: %+v, %+v", d.State("a"), d.Stats("a"))
	}
	d.pass(500 * ms).shows("pr")
	if now := d.find("a").lag; now > lag || d.waiting(d.find("a")) >= 0 || d.Stats("a").Overruns != 2 {
		t.Errorf("it is owed %v, and was owed %v", now, lag)
	}
	d.Changed()
	d.Hear(d.at, "a")
	fixture.If(t, !d.Changed() || d.State("a").Mute || d.waiting(d.find("a")) != 0 || !d.find("a").drains,
		"heard: %+v", d.State("a"))
	d.drain("a")
	turn("b", "a")
	for _, late := range []bool{false, true} {
		d.find("a").settled = late
		d.Silence(d.at, "a")
		fixture.If(t, d.State("a").Mute != late, "its drain is late %v, and it is mute %v", late, !late)
	}
}

// No tenant that wants the GPU waits for ever.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 8; n++ {
		var programs []*program
		for i := range n {
			p := kind([]string{"queue", "steps", "burst"}[i%3], float64(1+i*i))
			p.name = string(rune('a' + i))
			programs = append(programs, p)
		}
		w := newWorld(t, false, nil, programs...)
		w.run(3 * time.Second)
		for _, p := range programs {
			gap := 3*time.Second - p.steps[len(p.steps)-1]
			for i := 1; i < len(p.steps); i++ {
				gap = max(gap, p.steps[i]-p.steps[i-1])
			}
			if most := time.Duration(n*n) * 50 * ms; gap > most {
				t.Errorf("of %d %s did nothing for %v, more than %v", n, p.name, gap, most)
			}
		}
	}
}

// A scheduler's next call is the earliest that any of its GPUs asks for. A GPU may ask for none.
func TestFirstWakeCounts(t *testing.T) {
	for i, limits := range [][]float64{{0.5, 0.05, 1}, {0.05, 0.5, 1}, {1, 0.05, 0.5}, {1, 1, 0.05}, {1, 1, 1},
		{0.5, 0.05, 1}, {0.05, 0.5, 1}} {
		h, now := hosts(Config{}, len(limits))
		first := time.Duration(0)
		for n, limit := range limits {
			h.gpus[n].Join(0, "a", Share{Limit: limit})
			h.gpus[n].Want(0, "a")
			if n > 0 && i > 4 { // decided together
				h.gpus[0].Link(0, h.gpus[n], "a")
			}
		}
		wake := h.Decide(*now)
		for _, g := range h.gpus {
			if w := g.wake(); w != 0 && (first == 0 || w < first) {
				first = w
			}
		}
		fixture.If(t, wake != first || (wake == 0) != (limits[2] == 1 && limits[1] == 1),
			"%v: to be called at %v, not %v", limits, wake, first)
	}
}

// Nothing is decided without an input or a due event.
func TestNothingToDecide(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	if d.decide(); d.wake != 0 || d.Decide(time.Second) != 0 || d.GPU.now != 0 {
		t.Errorf("decided on as of %v, to be called at %v", d.GPU.now, d.wake)
	}
	d.Change(time.Second, "a", Share{Limit: 0.5})
	d.Want(time.Second, "a")
	wake := d.Decide(time.Second)
	fixture.If(t, d.Decide(wake-1) != wake || d.GPU.now != time.Second,
		"decided on as of %v, before %v", d.GPU.now, wake)
	d.Decide(wake)
	fixture.If(t, d.GPU.now != wake, "decided on as of %v, not %v", d.GPU.now, wake)
}

// A limit is used up when less than a tenth of a millisecond remains.
func TestDregs(t *testing.T) {
	for left, dry := range map[time.Duration]bool{100 * us: false, 100*us - 1: true, 0: true} {
		d := newDesk(t, Config{}, 1)
		d.join(Share{Limit: 0.5}, "a")
		d.want("a")
		d.find("a").bucket = left
		d.decide()
		fixture.If(t, d.find("a").dry != dry, "with %v left it is dry: %v", left, !dry)
	}
}

// Tenants that lose by running together run one at a time. The one that is owed
// most runs first, however little that is.
func TestTurnsWhereTogetherLoses(t *testing.T) {
	for _, c := range []struct {
		together bool
		a, b     time.Duration
		want     string
	}{{true, 1, 0, "rr"}, {false, 1, 0, "rp"}, {false, 0, 1, "pr"}} {
		d := two(t, Share{}, Share{})
		d.pass(10 * ms).know()
		d.together, d.dirty = c.together, true
		d.find("a").lag, d.find("b").lag = c.a, c.b
		d.decide().shows(c.want)
	}
}

// A gang that may not run on another GPU does not hold back the next tenant, however much the gang is owed.
func TestGangThatMayNotRunBlocksNobody(t *testing.T) {
	for _, owed := range []bool{false, true} {
		d := newDesk(t, Config{}, 2)
		other := d.Scheduler.gpus[1]
		other.Join(0, "a", Share{Limit: 0.5})
		d.join(Share{}, "a")
		d.join(Share{Class: Idle}, "b")
		d.Link(0, other, "a")
		other.find("a").bucket = 0 // its limit is used up there
		d.want("a", "b")
		other.Want(0, "a")
		if d.know(); owed {
			d.find("a").lag = time.Second
		}
		d.decide().shows("pr")
	}
}

// News of others does not shorten the wait for a tenant that does not drain.
func TestDrainHasItsTime(t *testing.T) {
	d := newDesk(t, Config{Turns: true}, 1)
	d.join(Share{}, "a", "b")
	d.want("a", "b")
	d.decide().pass(5*ms + 1).shows("pp")
	for d.at < 55*ms {
		d.Report(d.at, "b", Usage{})
		d.decide().shows("pp")
		fixture.Stop(t, d.Stats("a").Overruns != 0, "after %v: %+v", d.at-5*ms, d.Stats("a"))
		d.pass(ms)
	}
	d.pass(1).shows("pr")
}

// A gang counts once among the tenants that want the GPU, on any number of
// GPUs. The next tenant with the same debt does not rank before it.
func TestGangIsRankedOnce(t *testing.T) {
	d, other := gang(t)
	d.want("a", "b")
	other.Want(0, "a")
	d.find("a").lag, other.find("a").lag, d.find("b").lag = ms, ms, ms
	d.find("b").owed = true // and that is not made up yet
	if d.decide().shows("rp"); modes(other) != "r" || len(d.units) != 2 {
		t.Errorf("on the other GPU: %s, of %d units", modes(other), len(d.units))
	}
}
