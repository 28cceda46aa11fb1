package schedule

import (
	"slices"
	"time"
)

// dregs is what a limit's bucket may hold and still count as empty: less is
// not worth a turn.
const dregs = 100 * time.Microsecond

// Decide moves on: it ends what is over and grants what is free. It returns
// when it must be called again at the latest, 0 where nothing happens before
// the next input.
func (g *GPU) Decide(now time.Duration) time.Duration {
	g.advance(now)
	if t := g.lone(); t != nil {
		g.open(t)
		return 0
	}
	g.guard()
	g.hold()
	g.overrun()
	g.judge()
	g.press()
	g.expire()
	if len(g.on) == 0 {
		g.draining = false
		if t := g.next(); t != nil {
			g.grant(t)
		}
	}
	g.try()
	return g.wake()
}

// lone returns the tenant that nobody else is there beside, nil where that is
// none, or it has a limit or is held. A second session of the same tenant counts as well:
// whoever comes third must not wait for what two have queued without bound.
func (g *GPU) lone() *tenant {
	if g.sessions != 1 {
		return nil
	}
	i := slices.IndexFunc(g.tenants, func(t *tenant) bool { return t.sessions > 0 })
	if t := g.tenants[i]; t.share.Limit == 1 && !t.share.Held {
		return t
	}
	return nil
}

// ready says whether t may have the next turn.
func (t *tenant) ready() bool { return t.wants && !t.dry && !t.share.Held }

// open gives the GPU to t without any bound. It is taken to want it: nobody
// asks who need not.
func (g *GPU) open(t *tenant) {
	if len(g.on) == 1 && t.state.Mode == Open && !t.state.Watch {
		return
	}
	if g.has(t) {
		g.finish(t, wholly)
	}
	g.together.on, g.draining = false, false
	if !t.wants {
		t.wants = true
		g.wait(t)
		g.lift(t)
	}
	g.grant(t)
	t.began, t.opened, t.state.Mode, t.state.End, g.end = false, true, Open, 0, 0
}

// guard bounds what who was alone may queue, before somebody else wants the
// GPU. If it is idle its Yield will say so.
func (g *GPU) guard() {
	if len(g.on) != 1 || g.together.on || g.draining || g.on[0].state.Mode != Open {
		return
	}
	t := g.on[0]
	t.state.Mode = Run
	g.bound(t, g.turn(t))
}

// hold ends the turn of who is held. Where it runs together with others they
// stop too: they are let together again when it has drained.
func (g *GPU) hold() {
	if !g.draining && slices.ContainsFunc(g.on, func(t *tenant) bool { return t.share.Held }) {
		g.pause()
	}
}

// overrun ends the wait for who did not drain in time. Its kernels are still
// on the GPU, so it goes on being charged: see forgive.
func (g *GPU) overrun() {
	if !g.draining || g.now < g.deadline {
		return
	}
	for len(g.on) > 0 {
		t := g.on[0]
		t.stats.Overruns++
		t.late = g.now
		g.finish(t, wholly)
	}
}

// press lets those who began to want shorten the turn of who has the GPU, if
// they go before it.
func (g *GPU) press() {
	for _, t := range g.tenants {
		if !t.began {
			continue
		}
		t.began = false
		switch {
		case len(g.on) == 0 || g.draining || !t.ready():
		case g.together.on:
			g.admit(t)
		case t == g.on[0]:
			g.bound(t, g.turn(t))
		default:
			g.hurry(t)
		}
	}
}

// hurry ends the turn of who has the GPU for t's sake: as soon as it ran its
// minimum if t goes before it by class or is behind it, else after a turn. For
// a lower class nothing ends.
func (g *GPU) hurry(t *tenant) {
	holder := g.on[0]
	soonest := max(g.now, g.granted+g.config.Minimum)
	switch mine, its := t.share.Class, holder.share.Class; {
	case mine < its:
		return
	case mine > its || t.v < g.virtual(holder, soonest):
		if g.end == 0 || soonest < g.end {
			g.end = soonest
			g.system.Preempted++
		}
	case g.end == 0:
		g.end = max(soonest, g.now+g.turn(holder))
	}
	holder.state.End = g.end
}

// expire ends the turn that is over, or extends it where nobody else is next:
// that spares the drain.
func (g *GPU) expire() {
	if len(g.on) != 1 || g.together.on || g.draining || g.end == 0 || g.now < g.end {
		return
	}
	t := g.on[0]
	t.dry = g.empty(t)
	if g.next() == t {
		g.bound(t, g.turn(t))
		return
	}
	g.pause()
}

// pause stops all who have the GPU; the next turn waits for them to drain.
func (g *GPU) pause() {
	for _, t := range g.on {
		t.state.Mode, t.state.Watch, t.state.End = Pause, false, 0
	}
	g.draining, g.deadline, g.end = true, g.now+g.config.Drain, 0
}

// next returns who is furthest behind in the highest class of those who may
// run; of two the one that has the GPU, else the first by name. nil where there
// is none.
func (g *GPU) next() *tenant {
	var least *tenant
	for _, t := range g.tenants {
		switch {
		case !t.ready() || least != nil && t.share.Class < least.share.Class:
		case least == nil || t.share.Class > least.share.Class:
			least = t
		default:
			a, b := g.virtual(t, g.now), g.virtual(least, g.now)
			if a < b || a == b && g.has(t) {
				least = t
			}
		}
	}
	return least
}

// grant begins a turn of t.
func (g *GPU) grant(t *tenant) {
	g.forgive(t)
	g.enter(t, Run)
	g.granted, g.settled, g.draining = g.now, g.now, false
	g.bound(t, g.turn(t))
}

// enter gives t a place on the GPU.
func (g *GPU) enter(t *tenant, m Mode) {
	g.waited(t)
	g.on = append(g.on, t)
	g.turns++
	t.stats.Turns++
	t.use, t.opened, t.began = Usage{}, false, false
	t.state = State{Mode: m, Turn: g.turns}
}

// bound sets the end of t's turn: open where nobody else may run, or only who
// waits until nobody like t wants to, and no limit stands against it.
func (g *GPU) bound(t *tenant, length time.Duration) {
	others := slices.ContainsFunc(g.tenants, func(o *tenant) bool { return o != t && o.ready() && o.share.Class >= t.share.Class })
	g.end = 0
	if others {
		g.end = g.now + length
	}
	if t.share.Limit < 1 {
		// The bucket fills while it empties.
		until := g.now + max(g.config.Minimum, time.Duration(float64(g.left(t))/(1-t.share.Limit)))
		if g.end == 0 || until < g.end {
			g.end = until
		}
	}
	t.state.End = g.end
}

// turn returns how long a turn of t is: its part of a round, or as long as its
// burst where that is about as long.
func (g *GPU) turn(t *tenant) time.Duration {
	weights := 0.0
	for _, o := range g.tenants {
		if o == t || o.ready() && o.share.Class == t.share.Class {
			weights += o.share.Weight
		}
	}
	part := time.Duration(float64(g.config.Round) * t.share.Weight / weights)
	length := max(g.config.Minimum, min(g.config.Turn, part))
	burst := t.burst + t.burst/10
	switch {
	case t.burst == 0 || burst > length*3/2:
		return length
	default:
		return max(burst, time.Millisecond)
	}
}

// wake returns when something will have to be decided: always after now.
func (g *GPU) wake() time.Duration {
	var at time.Duration
	sooner := func(t time.Duration) {
		if t = max(t, g.now+1); at == 0 || t < at {
			at = t
		}
	}
	switch {
	case g.draining:
		sooner(g.deadline)
	case g.together.on:
		sooner(g.together.judge)
	case g.end != 0:
		sooner(g.end)
	}
	for _, t := range g.tenants {
		if t.wants && t.dry {
			need := float64(g.enough(t) - t.bucket)
			sooner(g.now + 1 + time.Duration(need/t.share.Limit))
		}
	}
	return at
}

func (g *GPU) has(t *tenant) bool { return slices.Contains(g.on, t) }
