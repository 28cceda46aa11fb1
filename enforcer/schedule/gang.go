package schedule

import (
	"slices"
	"time"
)

const (
	suspect   = 10 * time.Millisecond // a drain that takes longer may wait for the tenant's other GPU
	patience  = 2 * time.Millisecond  // until a drain that needs further launches gets them,
	nudgeTime = time.Millisecond      // for so long
)

// suspect makes a gang of a tenant that does not drain on one GPU while it is
// held back on another: its processes wait for one another.
func (h *Scheduler) suspect(t *tenant) {
	for _, g := range h.gpus {
		o := g.find(t.name)
		if o == nil || o == t || o.sessions == 0 || slices.Contains(t.unit.members, o) {
			continue
		}
		if o.drains || o.wants && o.state.Mode == Pause {
			h.join(t, o)
		}
	}
}

// heldElsewhere says whether launches of the same tenant wait on another GPU.
func (t *tenant) heldElsewhere() bool {
	for _, g := range t.gpu.scheduler.gpus {
		if o := g.find(t.name); o != nil && o != t && o.wants && o.state.Mode == Pause {
			return true
		}
	}
	return false
}

// Link says that the tenant's processes on two GPUs wait for one another.
func (g *GPU) Link(now time.Duration, o *GPU, name string) {
	a, b := g.input(now, name), o.input(now, name)
	if a != nil && b != nil && a != b && a.unit != b.unit {
		g.scheduler.join(a, b)
	}
}

// join makes one unit of two, and one domain of their GPUs.
func (h *Scheduler) join(a, b *tenant) {
	a.gpu.system.Gangs++
	into := a.unit
	for _, t := range b.unit.members {
		t.unit = into
		into.members = append(into.members, t)
	}
	h.merge(a.gpu.domain, b.gpu.domain)
}

func (h *Scheduler) merge(a, b *domain) {
	if a == b {
		return
	}
	for _, g := range b.gpus {
		g.domain = a
		g.dirty = true
		a.gpus = append(a.gpus, g)
	}
}

// part takes t, which has no session left, out of its gang, and separates GPUs
// that no gang spans now.
func (h *Scheduler) part(t *tenant) {
	u := t.unit
	if len(u.members) == 1 {
		return
	}
	u.members = slices.DeleteFunc(u.members, func(o *tenant) bool { return o == t })
	t.unit = &unit{members: []*tenant{t}}
	for _, g := range slices.Clone(t.gpu.domain.gpus) {
		g.domain = &domain{gpus: []*GPU{g}}
		g.dirty = true
	}
	for _, g := range h.gpus {
		for _, t := range g.tenants {
			for _, o := range t.unit.members {
				h.merge(g.domain, o.gpu.domain)
			}
		}
	}
}

// stir lets a paused tenant launch while others of its unit do not drain: a
// kernel that waits for another one, not launched yet, would never end.
func (g *GPU) stir(t *tenant) {
	switch {
	case t.nudge == 0 && !t.stuck():
	case t.nudge == 0 && !t.drains:
		g.nudge(t, g.scheduler.config.Drain)
	case t.nudge == 0:
		for _, o := range t.unit.members { // all of them wait, and none reports when it is enough
			if !o.share.Held {
				o.gpu.nudge(o, nudgeTime)
			}
		}
	case t.ready() && t.unit.granted && t.unit.clear():
		t.nudge, t.drains, t.settled = 0, false, false
	case g.now >= t.nudge || len(t.unit.members) > 1 && !slices.ContainsFunc(t.unit.members, (*tenant).waits):
		paused, settled := t.paused, t.settled
		g.pause(t)
		t.paused, t.settled = paused, settled
	}
}

// nudge lets t launch for a while; its drain still counts against it.
func (g *GPU) nudge(t *tenant, d time.Duration) {
	paused, drains, settled, answered := t.paused, t.drains, t.settled, t.answered
	g.open(t, Run)
	t.nudge, t.paused, t.drains, t.settled, t.answered = g.now+d, paused, drains, settled, answered
}

// waits says whether t does not drain, and may wait for held launches. On a
// single GPU its next turn solves that once the others go on, and they wait no
// longer.
func (t *tenant) waits() bool {
	return t.drains && (!t.settled || len(t.unit.members) > 1) && t.gpu.now-t.held >= t.gpu.scheduler.patience(t)
}

// stuck says whether it is time to let t launch, so that its unit can drain.
func (t *tenant) stuck() bool {
	m := t.unit.members
	if t.state.Mode != Pause || t.unit.granted || t.share.Held || len(m) == 1 && t.sessions == 1 ||
		!slices.ContainsFunc(m, (*tenant).waits) {
		return false
	}
	return !t.drains || !slices.ContainsFunc(m, func(o *tenant) bool { return !o.waits() })
}

// patience returns how long a drain may take before its tenant may launch:
// longer than its longest kernel.
func (h *Scheduler) patience(t *tenant) time.Duration { return max(patience, t.longest*3/2) }

// wakeDrain wakes when something follows from t's drain.
func (g *GPU) wakeDrain(t *tenant, sooner func(time.Duration)) {
	passed := g.now - t.paused
	for _, at := range []time.Duration{suspect, g.scheduler.config.Drain} {
		if passed < at {
			sooner(t.paused + at)
		}
	}
	if len(t.unit.members) > 1 || t.sessions > 1 {
		if at := t.held + g.scheduler.patience(t); at > g.now {
			sooner(at)
		}
	}
}
