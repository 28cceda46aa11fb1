package schedule

import (
	"math"
	"slices"
	"time"
)

// slack is how much less than the time of its turn a tenant can claim to have
// used: a launch comes a little after the grant, and the end of the last
// kernel is seen a little late. Nobody has to pay for a hand-over. It is also
// what a liar gets for nothing in each turn, so it is not longer than a slow
// hand-over takes.
const slack = 500 * time.Microsecond

// wholly is the claim of who pays for all the time that it had.
const wholly time.Duration = math.MaxInt64

// advance brings the books up to now, a slot of the history at a time; what
// is older than the history in one step.
func (g *GPU) advance(now time.Duration) {
	if now-g.now > slots*slotTime {
		g.step(now - slots*slotTime)
	}
	for now > g.now {
		g.step(min(now, (g.now/slotTime+1)*slotTime))
	}
}

// step is advance within a slot.
func (g *GPU) step(now time.Duration) {
	passed := now - g.now
	g.remember(now)
	g.now = now
	g.settle()
	for _, t := range g.tenants {
		if t.share.Limit == 1 {
			continue
		}
		fill := time.Duration(t.share.Limit * float64(passed))
		t.bucket = min(t.bucket+fill, g.brim(t))
		if t.dry && t.wants && !t.share.Held {
			t.stats.Throttled += passed
		}
		if t.dry && t.bucket >= g.enough(t) {
			t.dry = false
			if t.wants {
				t.began = true
				g.lift(t)
			}
		}
	}
	g.raise()
}

// raise moves each class's floor up to who is furthest behind in it of those
// who may run.
func (g *GPU) raise() {
	var least [len(g.floors)]float64
	var found [len(g.floors)]bool
	for _, t := range g.tenants {
		if !t.ready() {
			continue
		}
		c := t.share.Class - Idle
		if v := g.virtual(t, g.now); !found[c] || v < least[c] {
			least[c], found[c] = v, true
		}
	}
	for c := range least {
		if found[c] && least[c] > g.floors[c] {
			g.floors[c] = least[c]
		}
	}
}

// lift lets t, which begins to want, start beside the others: sleeping earns
// at most one turn.
func (g *GPU) lift(t *tenant) {
	t.v = max(t.v, g.floor(t)-g.config.Turn.Seconds()/t.share.Weight)
}

// virtual returns t's virtual time, with what it runs up in its turn.
func (g *GPU) virtual(t *tenant, at time.Duration) float64 {
	if len(g.on) == 1 && g.on[0] == t {
		return t.v + (at-g.settled).Seconds()/t.share.Weight
	}
	return t.v
}

// left returns what t's limit leaves it now.
func (g *GPU) left(t *tenant) time.Duration {
	if len(g.on) == 1 && g.on[0] == t {
		return t.bucket - (g.now - g.settled)
	}
	return t.bucket
}

// empty says whether t's limit leaves it nothing that is worth a turn.
func (g *GPU) empty(t *tenant) bool { return t.share.Limit < 1 && g.left(t) < dregs }

// brim returns what fits into the bucket of t's limit.
func (g *GPU) brim(t *tenant) time.Duration {
	return time.Duration(t.share.Limit * float64(g.config.Round))
}

// enough returns what an empty bucket must hold again before t runs: a turn's
// worth, so that not every microsecond that drips in costs a hand-over.
func (g *GPU) enough(t *tenant) time.Duration {
	turn := time.Duration((1 - t.share.Limit) * float64(g.config.Turn))
	return min(turn, g.brim(t)/2)
}

// settle charges those who have the GPU for the time that has passed; in a
// turn for all but the last slack, which its Yield decides on. Together each
// is charged its weight's part, because each was found to get that or more:
// so nobody comes out of it with a debt.
func (g *GPU) settle() {
	until := g.now
	if !g.together.on {
		until -= slack
	}
	passed := until - g.settled
	if passed <= 0 || len(g.on) == 0 {
		return
	}
	g.settled = until
	weights := 0.0
	for _, t := range g.on {
		weights += t.share.Weight
	}
	for _, t := range g.on {
		g.charge(t, time.Duration(float64(passed)*t.share.Weight/weights))
	}
	if g.together.on {
		g.system.Together += passed
	}
}

// charge books d of GPU time to t.
func (g *GPU) charge(t *tenant, d time.Duration) {
	t.v += d.Seconds() / t.share.Weight
	t.stats.Charged += d
	t.past.slot(g.now).charged += d
	t.burst = max(t.burst-d, 0)
	if t.share.Limit < 1 {
		t.bucket -= d
	}
}

// finish takes t from the GPU. In a turn it is charged what it says that it
// was busy, within slack of the time that it had.
func (g *GPU) finish(t *tenant, busy time.Duration) {
	g.settle()
	if !g.together.on {
		wall := g.now - g.granted
		cost := min(max(busy, wall-slack, 0), wall)
		g.charge(t, cost-min(g.settled-g.granted, cost))
		g.system.Handover += wall - cost
		if !t.opened {
			t.pace.learn(t.use, cost)
		}
	}
	if g.draining {
		t.stats.Overrun += g.now - (g.deadline - g.config.Drain)
	}
	g.on = slices.DeleteFunc(g.on, func(o *tenant) bool { return o == t })
	t.dry = t.dry || g.empty(t) // who gives its turn back is not seen by expire
	t.state.Mode, t.state.Watch, t.state.End = Pause, false, 0
	g.wait(t)
	if len(g.on) == 0 {
		g.together.on, g.end = false, 0
	}
}

// wait has t wait for a turn from now on.
func (g *GPU) wait(t *tenant) { t.asked, t.barred = g.now, t.stats.Throttled }

// waited ends t's wait, if it does wait: it got a turn, gave up or is held.
// What its own limit made it wait is in no wait that is late.
func (g *GPU) waited(t *tenant) {
	wait := g.waiting(t)
	if wait < 0 {
		return
	}
	t.stats.Waited += wait
	t.stats.Waits++
	if most := t.share.Wait; most > 0 && wait-(t.stats.Throttled-t.barred) > most {
		t.stats.Late++
	}
	g.wait(t)
}

// waiting returns how long t has waited for a turn; less than 0 where it does
// not wait.
func (g *GPU) waiting(t *tenant) time.Duration {
	if !t.wants || t.share.Held || g.has(t) {
		return -1
	}
	return g.now - t.asked
}

// forgive ends the time that t was past a drain's deadline, and charges it for
// that: its kernels were in the way of who had the GPU. Not for more than a
// round, so that who never says that it has drained does not sink for ever.
func (g *GPU) forgive(t *tenant) {
	if t.late != 0 {
		late := min(g.now-t.late, g.config.Round)
		g.charge(t, late)
		t.stats.Overrun += late
		t.late = 0
	}
}
