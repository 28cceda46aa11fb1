package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// Two tenants with a rank each on several GPUs are declared as gangs, or found by drains that take too long,
// once launches are held back. Together they reach the throughput of plain slicing, in equal parts.
func TestGangsShareGPUs(t *testing.T) {
	t.Parallel()
	const long = 5 * time.Second
	for _, gpus := range [][]int{{0, 1}, {0, 1, 2, 3}} {
		for _, linked := range []bool{false, true} {
			var sums, a, b [2]float64
			for i, plain := range []bool{true, false} {
				p, q := kind("ddp", 50), kind("ddp", 50)
				p.name, q.name = "p", "q"
				w := newWorld(t, plain, [][]int{gpus, gpus}, p, q)
				if w.run(ms); linked && !plain {
					w.link(p, q)
				}
				for !plain && len(w.gpus[0].g.domain.gpus) != len(gpus) && w.now < 4*time.Second {
					w.run(100 * ms)
				}
				if !plain && len(w.gpus[0].g.domain.gpus) != len(gpus) {
					t.Errorf("%v: not found within 4 s", gpus)
				}
				w.run(long - w.now)
				a[i], b[i] = p.rate(begin, long), q.rate(begin, long)
				sums[i] = a[i] + b[i]
				if most := int(long/time.Millisecond) * 3; w.decides > most {
					t.Errorf("%v: %d decisions, more than %d", gpus, w.decides, most)
				}
			}
			part, least := sums[1]/sums[0], map[bool]float64{false: 0.75, true: 0.9}[linked]
			t.Logf("%v, linked %v: %.1f + %.1f, plain %.1f: %.3f", gpus, linked, a[1], b[1], sums[0], part)
			if part < least || min(a[1], b[1]) < 0.4*sums[1] {
				t.Errorf("%v, linked %v: %.1f + %.1f, plain %.1f + %.1f", gpus, linked, a[1], b[1], a[0], b[0])
			}
		}
	}
}

// A gang runs beside tenants of single GPUs, on one of its GPUs and on both.
func TestGangBesideSingles(t *testing.T) {
	t.Parallel()
	const long = 6 * time.Second
	lone := kind("ddp", 1)
	newWorld(t, true, [][]int{{0, 1}}, lone).run(3 * time.Second)
	all := lone.rate(begin, 3*time.Second)
	for _, c := range []struct {
		on    []int // the singles' GPUs
		kind  string
		gang  float64
		other float64
	}{{[]int{0}, "queue", 0.68, 0.28}, {[]int{0, 1}, "steps", 0.65, 0.26}, {[]int{0}, "tick", 0.9, 0.9}} {
		gang, on := kind("ddp", 70), [][]int{{0, 1}}
		programs := []*program{gang}
		for _, n := range c.on {
			p := kind(c.kind, 30)
			p.name = fmt.Sprint("single", n)
			programs, on = append(programs, p), append(on, []int{n})
		}
		w := newWorld(t, false, on, programs...)
		w.run(ms)
		w.link(gang)
		w.run(long)
		row := fmt.Sprintf("ddp 70 beside %s 30 on %v: %.3f", c.kind, c.on, gang.rate(begin, long)/all)
		if part := gang.rate(begin, long) / all; part < c.gang {
			t.Errorf("beside %s on %v the gang has %.3f", c.kind, c.on, part)
		}
		for _, p := range programs[1:] {
			part := p.rate(begin, long) / alone(t, c.kind).lone
			row += fmt.Sprintf(" %.3f", part)
			if part < c.other {
				t.Errorf("%s has %.3f", p.name, part)
			}
		}
		t.Log(row)
	}
}

// gang returns a desk with a gang a on two GPUs and a tenant b on the first one. Both want the GPUs permanently.
func gang(t *testing.T) (d *desk, other *GPU) {
	d = newDesk(t, Config{Turns: true}, 2)
	other = d.Scheduler.gpus[1]
	for _, g := range d.Scheduler.gpus {
		g.Join(0, "a", Share{})
	}
	d.join(Share{}, "b")
	d.Link(0, other, "a")
	return d.decide(), other
}

func TestGangIsOne(t *testing.T) {
	d, other := gang(t)
	fixture.Stop(t, d.domain != other.domain || d.find("a").unit != other.find("a").unit || d.System().Gangs != 1,
		"%+v", d.System())
	d.Link(d.at, other, "a") // it is one already
	d.Link(d.at, other, "b") // b has no session there
	d.Link(d.at, d.GPU, "a") // a link to the same GPU
	if d.decide(); d.System().Gangs != 1 || len(d.find("a").unit.members) != 2 || len(d.domain.gpus) != 2 {
		t.Errorf("%+v", d.System())
	}
	d.want("b")
	d.decide().shows("Pr")
	other.Want(d.at, "a")
	d.want("a")
	d.decide().shows("pr")
	fixture.Equal(t, modes(other), "p", "on the other GPU")
	d.pass(20 * ms).shows("pp")
	d.drain("b")
	fixture.If(t, d.decide().shows("rp") != nil && modes(other) != "r", "on the other GPU: %s", modes(other))
	for d.State("a").Mode == Run && d.at < time.Second {
		d.pass(ms)
	}
	fixture.Equal(t, modes(other), "p", "a is held on the first GPU only")
	if d.drain("a"); d.decide().shows("pr") != nil && !other.find("a").drains {
		t.Error("on the other GPU it has drained as well")
	}
}

// The gang ends with its last session.
func TestLeaveTakesTheGangApart(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		d, other := gang(t)
		third := d.Scheduler.Add()
		third.Join(d.at, "a", Share{})
		other.Link(d.at, third, "a")
		if d.decide(); len(d.domain.gpus) != 3 || len(d.find("a").unit.members) != 3 {
			t.Fatalf("%d GPUs, %d members", len(d.domain.gpus), len(d.find("a").unit.members))
		}
		gone, stay := d.GPU, other
		if !first {
			gone, stay = third, d.GPU
		}
		gone.Leave(d.at, "a")
		d.decide()
		if gone.domain == stay.domain || len(gone.domain.gpus) != 1 || len(stay.domain.gpus) != 2 ||
			len(stay.find("a").unit.members) != 2 {
			t.Errorf("%d and %d GPUs, %d members", len(gone.domain.gpus), len(stay.domain.gpus),
				len(stay.find("a").unit.members))
		}
		stay.Leave(d.at, "a")
		d.decide()
		for _, g := range d.Scheduler.gpus {
			if len(g.domain.gpus) != 1 || g.domain.gpus[0] != g {
				t.Errorf("%d GPUs are decided on together", len(g.domain.gpus))
			}
		}
	}
}

// A tenant counts as a gang if its drains on one GPU, again and again, take long and last until it launches
// on another one. It is no longer one if it needs no nudge for a while, unless a communicator links it.
func TestGangIsFound(t *testing.T) {
	for takes, linked := range map[time.Duration]bool{suspect: false, 60 * ms: false, 0: true} {
		d := newDesk(t, Config{Turns: true}, 2)
		other := d.Scheduler.gpus[1]
		for _, g := range d.Scheduler.gpus {
			for _, name := range []string{"a", "b"} {
				g.Join(0, name, Share{})
				g.Want(0, name)
			}
		}
		a, partner := d.find("a"), other.find("a")
		if partner.lag = -8 * ms; linked { // it goes second there
			d.Link(0, other, "a")
		}
		clean := linked
		joined := func() bool { return d.domain == other.domain }
		run := func(until time.Duration, while bool) {
			for d.decide(); d.at < until && joined() == while; d.pass(ms) {
				d.Report(d.at, "a", Usage{}) // it is not mute
				for _, o := range append(slices.Clone(d.tenants), other.tenants...) {
					if o != a || clean || partner.opened > a.paused && d.at-a.paused >= takes {
						o.gpu.Drained(d.at, o.name, Usage{})
					}
				}
			}
		}
		run(time.Second, false)
		fixture.If(t, !joined() || d.System().Gangs+other.System().Gangs != 1, "takes %v: not found", takes)
		fixture.If(t, !linked && a.stats.Turns < repeats, "takes %v: found after %d turns", takes, a.stats.Turns)
		clean = true
		found := d.at
		run(found+recent+200*ms, true)
		if joined() != linked || d.at < found+recent {
			t.Errorf("takes %v: a gang %v after %v", takes, joined(), d.at-found)
		}
	}
}

// What a communicator links stays together when the rest of a gang is taken apart, and without those who have left.
func TestDissolveKeepsLinks(t *testing.T) {
	d, other := gang(t)
	third, gone := d.Scheduler.Add(), d.Scheduler.Add()
	for _, g := range []*GPU{third, gone} {
		g.Join(0, "a", Share{})
	}
	gone.Link(0, other, "a")
	d.Scheduler.join(d.find("a"), third.find("a"))
	gone.Leave(0, "a")
	fixture.Equal(t, len(d.domain.gpus), 3, "… GPUs are decided on together")
	a := d.find("a")
	for past, members := range []int{3, 2} {
		d.GPU.now = recent + time.Duration(past)
		if d.Scheduler.acquit(a); len(a.unit.members) != members {
			t.Errorf("%d members %v after the last nudge", len(a.unit.members), d.GPU.now)
		}
	}
	u := a.unit
	d.GPU.now, d.at = time.Minute, time.Minute
	d.Scheduler.acquit(a)
	fixture.If(t, a.unit != u, "links are taken apart and made anew")
	if d.decide(); len(d.domain.gpus) != 2 || d.domain != other.domain || d.find("a").unit != other.find("a").unit ||
		len(d.find("a").unit.members) != 2 || len(third.find("a").unit.members) != 1 {
		t.Errorf("%d GPUs, %d members", len(d.domain.gpus), len(d.find("a").unit.members))
	}
}

// Letters stand for drains on one GPU that take as long as is suspicious: while the tenant waits at the gate of the
// other one (w), has work in flight there (f), did not drain there before this drain began (e), or launched there after
// (l); a quick one (q), and one while nothing waits there (n) or nobody is left (g). A dot is a time without any.
func TestDoubts(t *testing.T) {
	for drains, want := range map[string]bool{"ll": false, "lll": true, "fff": true, "eee": true, "lfe": true,
		"lqll": true, "lwll": false, "wwww": false, "nnnn": false, "qqqq": false, "ll.l": false, "llg": false} {
		d := newDesk(t, Config{}, 2)
		other := d.Scheduler.gpus[1]
		d.Scheduler.Add().Join(0, "b", Share{})
		for _, g := range d.Scheduler.gpus[:2] {
			g.Join(0, "a", Share{})
		}
		a, o := d.find("a"), other.find("a")
		d.GPU.now = time.Second
		for _, drain := range drains {
			a.paused = d.GPU.now
			o.opened, o.emptied, o.drains, o.wants, o.sessions = a.paused, a.paused, drain == 'f', drain != 'n', 1
			d.GPU.now += suspect
			switch drain {
			case 'q':
				d.GPU.now -= 2
			case 'g':
				o.sessions = 0
			case '.':
				d.GPU.now += recent
				continue
			}
			for range 2 { // a drain counts once
				if d.GPU.now-a.paused >= suspect {
					d.Scheduler.suspect(a)
				}
			}
			if d.GPU.now++; drain == 'l' {
				o.opened = d.GPU.now
			} else if drain == 'e' {
				o.emptied = d.GPU.now
			}
			d.acquit(a)
			d.GPU.now++
		}
		fixture.If(t, (a.unit == o.unit) != want, "%s: a gang %v", drains, !want)
	}
}

// A paused gang with a rank that waits for a launch may launch until it has drained everywhere. Then the others run.
func TestNudges(t *testing.T) {
	t.Parallel()
	d, other := gang(t)
	d.want("a")
	other.Want(0, "a")
	d.decide().shows("rP")
	d.want("b")
	for d.decide(); d.State("a").Mode == Run; {
		d.pass(us)
	}
	paused := d.find("a").paused
	other.Drained(d.at, "a", Usage{}) // its rank on the other GPU has no outstanding work
	d.decide().pass(paused + patience - 1 - d.at)
	fixture.Equal(t, modes(other), "p", "it launches at once")
	turn := other.State("a").Turn
	d.pass(1).shows("pp")
	fixture.If(t, modes(other) != "r" || other.State("a").Turn == turn, "after %v: %s", patience, modes(other))
	d.pass(ms).shows("pp")
	d.drain("a") // the launch of the other rank was what it waited for
	d.decide().shows("pr")
	fixture.If(t, modes(other) != "p" || other.find("a").paused != paused, "after it drained: %s", modes(other))
	other.Drained(d.at, "a", Usage{})
	d.decide().shows("pr")
	fixture.If(t, modes(other) != "p", "the other GPU: %s", modes(other))
}

// If all ranks wait, each may launch for a moment, again and again, less and less often.
func TestNudgesAll(t *testing.T) {
	d, other := gang(t)
	d.want("a")
	other.Want(0, "a")
	d.decide()
	d.want("b")
	for d.decide(); d.State("a").Mode == Run; {
		d.pass(100 * us)
	}
	nudges, was := 0, "pp"
	for d.State("b").Mode != Run && d.at < 100*ms {
		if is := modes(d.GPU); is[0] == 'r' && was[0] == 'p' {
			nudges++
			fixture.If(t, modes(other) != "r", "at %v: %s beside %s", d.at, is, modes(other))
		}
		was = modes(d.GPU)
		d.pass(100 * us)
	}
	fixture.If(t, nudges < 3 || nudges > 12, "%d times", nudges)
	s := d.Stats("a")
	fixture.If(t, d.State("b").Mode != Run || s.Overruns != 1, "b waits for ever: %s, %+v", modes(d.GPU), s)
}

// One of two processes of a tenant on one GPU may wait for the other's launch.
func TestNudgesSessions(t *testing.T) {
	for _, sessions := range []int{1, 2} {
		d := newDesk(t, Config{Turns: true}, 1)
		for range sessions {
			d.join(Share{}, "a")
		}
		d.join(Share{}, "b")
		d.want("a", "b")
		for d.decide(); d.State("a").Mode == Run; {
			d.pass(100 * us)
		}
		turns := d.Stats("a").Turns
		d.pass(10 * ms)
		fixture.Equal(t, d.Stats("a").Turns > turns, sessions == 2, "%d sessions: let launch", sessions)
		if d.Drained(d.at, "a", Usage{}); sessions == 1 {
			d.decide().shows("pr")
		}
	}
}

// A drain may take as long as the tenant's longest kernel before it counts as a wait for another rank.
func TestPatience(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	a := d.find("a")
	for _, c := range []struct{ says, want time.Duration }{{0, 2 * ms}, {ms, 2 * ms}, {4 * ms, 6 * ms},
		{time.Hour, 1500 * ms}} {
		a.longest = 0
		d.Report(d.at, "a", Usage{Longest: c.says})
		fixture.Equal(t, d.patience(a), c.want, "%v", c.says)
	}
	a.longest = 16 * ms
	d.Report(d.at, "a", Usage{})
	fixture.If(t, a.longest != 15*ms, "%v", a.longest)
}

// The longer a drain takes, the later a gang is nudged again.
func TestGap(t *testing.T) {
	d, _ := gang(t)
	for passed, want := range map[time.Duration]time.Duration{0: 0, 6 * ms: 2 * ms, 30 * ms: 10 * ms, 50 * ms: 50 * ms, time.Minute: time.Minute} {
		d.GPU.now, d.find("a").settled = d.find("a").paused+passed, passed >= 50*ms
		if d.nudge(d.find("a"), ms); d.find("a").unit.again != d.GPU.now+want {
			t.Errorf("after %v: %v", passed, d.find("a").unit.again-d.GPU.now)
		}
	}
}

// The time that a tenant waited for itself is counted.
func TestConvoy(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Config{Turns: true}, 2)
	other := d.Scheduler.gpus[1]
	for _, g := range d.Scheduler.gpus {
		g.Join(0, "a", Share{})
		g.Join(0, "b", Share{})
	}
	d.want("a")
	other.Want(0, "b")
	d.decide()
	other.Want(0, "a")
	d.want("b")
	for d.decide(); d.State("a").Mode == Run; {
		d.pass(us)
	}
	d.pass(d.find("a").paused + patience - d.at)
	fixture.If(t, d.Stats("a").Convoy != 0, "at once: %+v", d.Stats("a"))
	d.pass(3 * ms)
	fixture.If(t, d.Stats("a").Convoy != 3*ms || d.Stats("b").Convoy != 0, "%+v", d.Stats("a"))
	other.Rest(d.at, "a", Usage{})
	was := d.Stats("a").Convoy
	d.pass(3 * ms)
	fixture.If(t, d.Stats("a").Convoy != was, "held nowhere else: %+v", d.Stats("a"))
}

// A change of the group of GPUs that are decided together causes a new decision for all of them.
func TestDomainsAreDecidedOnAnew(t *testing.T) {
	d, other := gang(t)
	third := d.Scheduler.Add()
	third.Join(0, "a", Share{})
	d.decide()
	third.Link(0, d.GPU, "a")
	fixture.If(t, !other.dirty, "joined")
	d.decide()
	d.Leave(0, "a")
	fixture.If(t, !other.dirty || !third.dirty, "taken apart")
	d.decide()
	was := d.domain
	if d.Leave(0, "b"); d.domain != was { // it is in no gang
		t.Error("there was nothing to take apart")
	}
}

// The cases say when a paused tenant may launch so that it can drain.
func TestStuck(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a := ready(d, "a", Share{})
	d.GPU.now = time.Second
	for what, c := range map[string]struct {
		change func()
		want   bool
	}{
		"waits":       {func() {}, true},
		"runs":        {func() { a.state.Mode = Run }, false},
		"may run":     {func() { a.unit.granted = true }, false},
		"is held":     {func() { a.share.Held = true }, false},
		"one session": {func() { a.sessions = 1 }, false},
		"has drained": {func() { a.drains = false }, false},
		"too late":    {func() { a.settled = true }, false},
		"owes much":   {func() { a.settled, a.debt = true, far }, true},
		"not so long": {func() { a.held = time.Second - 2*ms + 1 }, false},
		"just enough": {func() { a.held = time.Second - 2*ms }, true},
		"was nudged":  {func() { a.unit.again = time.Second + 1 }, false},
		"may again":   {func() { a.unit.again = time.Second }, true},
		"at once":     {func() { a.unit.nudged, a.unit.again = time.Second, time.Second+1 }, true},
	} {
		x, u := *a, *a.unit
		a.sessions, a.drains = 2, true
		c.change()
		fixture.If(t, a.stuck() != c.want, "%s: stuck %v", what, !c.want)
		*a, *a.unit = x, u
	}
}

// A tenant that may launch to drain is paused again after its time, and runs when its turn comes.
func TestNudgeEnds(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a := ready(d, "a", Share{})
	d.GPU.now = time.Second
	for what, c := range map[string]struct {
		nudge          time.Duration
		granted        bool
		mode           Mode
		nudged, drains bool
	}{
		"goes on":  {time.Second + ms, false, Run, true, true},
		"is over":  {time.Second, false, Pause, false, true},
		"was over": {time.Second - ms, false, Pause, false, true},
		"its turn": {time.Second, true, Run, false, false},
	} {
		x, u := *a, *a.unit
		a.sessions, a.state.Mode, a.drains, a.settled, a.paused, a.held = 2, Run, true, true, 900*ms, 900*ms
		a.nudge, a.unit.granted = c.nudge, c.granted
		if d.stir(a); a.state.Mode != c.mode || (a.nudge != 0) != c.nudged || a.drains != c.drains ||
			a.settled != c.drains || a.paused != 900*ms {
			t.Errorf("%s: %+v, nudged until %v, drains %v, settled %v", what, a.state, a.nudge, a.drains, a.settled)
		}
		*a, *a.unit = x, u
	}
	a.state.Mode, a.nudge = Run, time.Second+ms // alone, and without outstanding work
	d.stir(a)
	fixture.If(t, a.state.Mode != Run, "it has no time to launch")
}
