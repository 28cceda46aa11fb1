package schedule

import (
	"math"
	"strings"
	"testing"
	"time"
)

// A desk drives a scheduler by hand in virtual time, and checks its invariants.
type desk struct {
	testing.TB
	*Scheduler
	*GPU // the first one
	at   time.Duration
	wake time.Duration
}

// never is a time that no test reaches.
const never = 1 << 60

func newDesk(t testing.TB, c Config, gpus int) *desk {
	d := &desk{TB: t, Scheduler: New(c)}
	for range gpus {
		d.Scheduler.Add().freedom = freedom{since: never, lacked: true, gap: never} // all are never open
	}
	d.GPU = d.Scheduler.gpus[0]
	return d
}

// join adds tenants with a session each to the first GPU.
func (d *desk) join(s Share, names ...string) {
	for _, name := range names {
		d.Join(d.at, name, s)
	}
}

// want makes tenants want the first GPU.
func (d *desk) want(names ...string) {
	for _, name := range names {
		d.Want(d.at, name)
	}
}

// rest ends a tenant's wish for the first GPU.
func (d *desk) rest(name string) { d.Rest(d.at, name, Usage{}) }

// drain reports that a paused tenant has no outstanding work.
func (d *desk) drain(name string) { d.Drained(d.at, name, Usage{}) }

// decide runs the decision and checks it.
func (d *desk) decide() *desk {
	d.Helper()
	d.Look(d.at)
	d.wake = d.Decide(d.at)
	hold(d, d.Scheduler, d.wake)
	return d
}

// know marks all tenants as measured, and as gaining by running together, for some seconds.
func (d *desk) know() *desk {
	for _, g := range d.Scheduler.gpus {
		g.measured, g.together, g.triedAt = nil, true, d.at-tryTime
		for _, t := range g.tenants {
			t.pace.solo, t.pace.fresh = costs(1e-4), d.at
			t.pace.beside = rate{launches: 0.9 * 0.2 / 1e-4, seconds: 0.2}
			t.owed = false
		}
	}
	return d
}

// pass lets time pass, and calls the scheduler at the times that it asked for.
func (d *desk) pass(by time.Duration) *desk {
	d.Helper()
	end := d.at + by
	for n := 0; d.wake != 0 && d.wake < end; n++ {
		if d.at = d.wake; n > 100000 {
			d.Fatalf("at %v: asked for %d decisions", d.at, n)
		}
		d.decide()
	}
	d.at = end
	return d.decide()
}

// modes formats the modes of a GPU's tenants by name: O open, R run, P pause. A
// small letter marks a tenant with outstanding work or waiting launches.
func modes(g *GPU) string {
	var b strings.Builder
	for _, t := range g.tenants {
		c := "ORP"[t.state.Mode : t.state.Mode+1]
		if t.wants {
			c = strings.ToLower(c)
		}
		b.WriteString(c)
	}
	return b.String()
}

// shows fails unless the tenants of the first GPU are in these modes.
func (d *desk) shows(want string) *desk {
	d.Helper()
	if got := modes(d.GPU); got != want {
		d.Errorf("at %v: %s, want %s", d.at, got, want)
	}
	return d
}

// hold fails if a scheduler that has just decided violates an invariant.
func hold(t testing.TB, h *Scheduler, wake time.Duration) {
	t.Helper()
	for _, g := range h.gpus {
		if wake != 0 && wake <= g.now || g.dirty {
			t.Fatalf("at %v: to be called again at %v, dirty %v", g.now, wake, g.dirty)
		}
		open, parts := 0, 0.0
		for _, o := range g.tenants {
			holdTenant(t, o)
			if parts += o.part; o.state.Mode == Open {
				open++
			}
		}
		if open > 1 && !g.freedom.on || parts > 1.0001 || len(g.tenants) > 256+64 {
			t.Fatalf("at %v: %d are open, parts come to %v, %d tenants", g.now, open, parts, len(g.tenants))
		}
		holdTurns(t, g)
	}
	holdProgress(t, h)
}

func holdTenant(t testing.TB, o *tenant) {
	t.Helper()
	wrong := ""
	switch paused := o.state.Mode == Pause; {
	case o.share.Held && !paused && o.nudge == 0:
		wrong = "is held and runs"
	case o.dry && !paused && o.nudge == 0:
		wrong = "runs beyond its limit"
	case o.sessions == 0 && (!paused || o.wants || o.drains || len(o.unit.members) != 1):
		wrong = "is gone and is there"
	case o.drains && (!paused && o.nudge == 0 || !o.wants):
		wrong = "drains what it does not have"
	case o.nudge != 0 && o.state.Mode != Run:
		wrong = "is nudged where it may not launch"
	case o.bucket > o.gpu.brim(o):
		wrong = "has a bucket that overflows"
	case math.IsNaN(o.part) || math.IsNaN(o.duty):
		wrong = "has a part that is no number"
	case o.state.Mode == Open && !o.opens():
		wrong = "is open beside others"
	}
	if wrong != "" {
		t.Fatalf("at %v: %s %s: %+v", o.gpu.now, o.name, wrong, *o)
	}
}

// holdTurns fails if two tenants run at once that must not.
func holdTurns(t testing.TB, g *GPU) {
	t.Helper()
	if !g.scheduler.config.Turns {
		return
	}
	running, drains, opened := 0, false, false
	for _, o := range g.tenants {
		if o.state.Mode == Open {
			t.Fatalf("at %v: %s runs without a bound", g.now, o.name)
		}
		if o.state.Mode == Run && o.nudge == 0 {
			running++
			opened = opened || o.opened == g.now
		}
		drains = drains || o.drains && !o.settled && o.paused < g.now
	}
	if running > 1 || drains && opened {
		t.Fatalf("at %v: %d have the GPU: %s", g.now, running, modes(g))
	}
}

// holdProgress fails if a GPU is wanted, and no tenant has it or is about to leave it.
func holdProgress(t testing.TB, h *Scheduler) {
	t.Helper()
	for _, g := range h.gpus {
		ready, moves := false, false
		for _, in := range g.domain.gpus {
			for _, o := range in.tenants {
				gang := len(o.unit.members) > 1 // one of them may be held or without allowance
				ready = ready || o.ready() && !gang
				moves = moves || o.draining() || o.state.Mode != Pause || gang
			}
		}
		if ready && !moves {
			t.Fatalf("at %v: nobody runs: %s", g.now, modes(g))
		}
	}
}
