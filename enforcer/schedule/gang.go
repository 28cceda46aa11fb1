package schedule

import (
	"slices"
	"time"
)

const (
	suspect   = 10 * time.Millisecond // a drain that takes longer may wait for the tenant's other GPU;
	repeats   = 3                     // that again and again makes a gang,
	recent    = 5 * time.Second       // with less between two; without a nudge for as long, it ends
	patience  = 2 * time.Millisecond  // until a drain that needs further launches gets them,
	nudgeTime = time.Millisecond      // for so long at least,
	nudgeMost = 30 * time.Millisecond // and at most
	far       = time.Second           // is a debt
)

// A doubt counts the drains of a tenant on two GPUs that may have waited for one
// another.
type doubt struct {
	drains int
	last   time.Duration // when the last of them was counted
}

// suspect counts that t does not drain on one GPU while it is held back on
// another. One such drain may only be late; several make a gang: the tenant's
// processes wait for one another.
func (h *Scheduler) suspect(t *tenant) {
	for _, g := range h.gpus {
		o := g.find(t.name)
		if o == nil || o.sessions == 0 || o.unit == t.unit || !o.drains && !(o.wants && o.state.Mode == Pause) {
			continue
		}
		d := t.doubts[g]
		if d.last >= t.paused { // it counts already
			continue
		}
		if t.gpu.now-d.last > recent {
			d.drains = 0
		}
		if t.doubt(o, doubt{d.drains + 1, t.gpu.now}); d.drains+1 >= repeats {
			h.join(t, o)
		}
	}
}

// acquit takes evidence from the end of t's drain. A drain that was late while t
// had nothing in flight on another GPU did not wait for that GPU. A gang that was
// found by its drains ends once it has drained without a nudge for long.
func (h *Scheduler) acquit(t *tenant) {
	u := t.unit
	if len(u.members) > len(t.bond) && t.gpu.now-u.nudged > recent {
		h.dissolve(u)
	}
	if t.gpu.now-t.paused < suspect {
		return
	}
	for g := range t.doubts {
		if o := g.find(t.name); o != nil && o.state.Mode == Pause && !o.drains && max(o.opened, o.emptied) <= t.paused {
			t.doubt(o, doubt{})
		}
	}
}

// doubt sets what is known about t and o.
func (t *tenant) doubt(o *tenant, d doubt) {
	for range 2 {
		if t.doubts == nil {
			t.doubts = map[*GPU]doubt{}
		}
		t.doubts[o.gpu] = d
		t, o = o, t
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

// Link says that the tenant's processes on two GPUs wait for one another, until
// their sessions leave.
func (g *GPU) Link(now time.Duration, o *GPU, name string) {
	a, b := g.input(now, name), o.input(now, name)
	if a == nil || b == nil || slices.Contains(a.bond, b) {
		return
	}
	bond := slices.Concat(a.bond, b.bond)
	for _, t := range bond {
		t.bond = bond
	}
	if a.unit != b.unit {
		g.scheduler.join(a, b)
	}
}

// join makes one unit of two, and one domain of their GPUs.
func (h *Scheduler) join(a, b *tenant) {
	a.gpu.system.Gangs++
	unite(slices.Concat(a.unit.members, b.unit.members), a.gpu.now)
	h.merge(a.gpu.domain, b.gpu.domain)
}

func unite(all []*tenant, now time.Duration) {
	u := &unit{members: all, nudged: now}
	for _, t := range all {
		t.unit = u
	}
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

// part takes t, which has no session left, out of its gang.
func (h *Scheduler) part(t *tenant) {
	t.doubts = nil
	if u := t.unit; len(u.members) > 1 {
		gone := func(o *tenant) bool { return o == t }
		u.members = slices.DeleteFunc(u.members, gone)
		bond := slices.DeleteFunc(t.bond, gone)
		for _, o := range bond {
			o.bond = bond
		}
		t.bond = []*tenant{t}
		unite(t.bond, t.gpu.now)
		h.separate(t.gpu.domain)
	}
}

// dissolve takes a gang apart, except for those that are linked.
func (h *Scheduler) dissolve(u *unit) {
	for _, t := range u.members {
		if t == t.bond[0] {
			unite(slices.Clone(t.bond), t.gpu.now)
		}
	}
	h.separate(u.members[0].gpu.domain)
}

// separate makes domains of those GPUs that gangs span.
func (h *Scheduler) separate(d *domain) {
	for _, g := range slices.Clone(d.gpus) {
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
				o.gpu.nudge(o, min(max(nudgeTime, o.gap()/3), nudgeMost))
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

// nudge lets t launch for a while; its drain still counts against it. The longer
// that takes, the later its unit is nudged again: a drain that is only late has
// to begin anew with each nudge.
func (g *GPU) nudge(t *tenant, d time.Duration) {
	t.unit.nudged, t.unit.again = g.now, g.now+t.gap()
	paused, drains, settled, answered := t.paused, t.drains, t.settled, t.answered
	g.open(t, Run)
	t.nudge, t.paused, t.drains, t.settled, t.answered = g.now+d, paused, drains, settled, answered
}

// gap returns for how long t is not nudged again. Each nudge may make a drain longer.
func (t *tenant) gap() time.Duration {
	if t.settled {
		return t.gpu.now - t.paused
	}
	return (t.gpu.now - t.paused) / 3
}

// waits says whether t does not drain, and may wait for held launches. On a
// single GPU its next turn solves that once the others go on, and they wait no
// longer, unless it owes so much that its next turn is far.
func (t *tenant) waits() bool {
	return t.drains && (!t.settled || len(t.unit.members) > 1 || t.debt >= far) &&
		t.gpu.now-t.held >= t.gpu.scheduler.patience(t)
}

// stuck says whether it is time to let t launch, so that its unit can drain.
func (t *tenant) stuck() bool {
	u, m := t.unit, t.unit.members
	if t.gpu.now < u.again && t.gpu.now != u.nudged {
		return false
	}
	if t.state.Mode != Pause || u.granted || t.share.Held || len(m) == 1 && t.sessions == 1 ||
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
		if at := max(t.held+g.scheduler.patience(t), t.unit.again); at > g.now {
			sooner(at)
		}
	}
}
