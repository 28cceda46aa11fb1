package schedule

import (
	"cmp"
	"slices"
	"time"
)

// A rank decides who goes first: by class, then by lag.
type rank struct {
	class Class
	lag   time.Duration
}

func (a rank) compare(b rank) int {
	return cmp.Or(cmp.Compare(b.class, a.class), cmp.Compare(b.lag, a.lag))
}

// first is a lag that goes before any other.
const first = time.Hour

// Look brings all books up to now, so that they can be read.
func (h *Scheduler) Look(now time.Duration) {
	for _, g := range h.gpus {
		g.advance(now)
	}
}

// Decide makes the decisions: it holds back tenants that are ahead and lets
// others run. It returns the latest time of the next call; 0: nothing happens
// before the next input.
func (h *Scheduler) Decide(now time.Duration) time.Duration {
	wake := time.Duration(0)
	for _, g := range h.gpus {
		if d := g.domain; g.dirty || d.wake != 0 && now >= d.wake {
			d.wake = h.decide(d, now)
		}
		if w := g.domain.wake; w != 0 && (wake == 0 || w < wake) {
			wake = w
		}
	}
	return wake
}

// decide makes the decisions for the GPUs of a domain.
func (h *Scheduler) decide(d *domain, now time.Duration) time.Duration {
	for i := 0; i < len(d.gpus); i++ { // overrun may add some
		g := d.gpus[i]
		g.advance(now)
		g.dirty = false
		g.overrun()
	}
	d.frees()
	for _, g := range d.gpus {
		g.close()
		for _, t := range g.tenants {
			t.dry = t.dry || t.share.Limit < 1 && t.bucket < dregs
		}
		g.measure()
		g.try()
		g.trying = g.tries()
		g.judge()
		g.free()
	}
	d.frees()
	for _, g := range d.gpus {
		g.close()
		owing := g.owing()
		for _, t := range g.tenants {
			g.latch(t, owing)
		}
	}
	h.rank(d)
	for _, u := range h.units {
		u.granted = u.fits()
		u.blocked = !u.granted && len(u.members) == 1 && u.members[0].owed
	}
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			if t.sessions > 0 {
				g.hold(t)
			}
		}
	}
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			if t.sessions > 0 {
				g.stir(t)
			}
		}
	}
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			if t.sessions > 0 && t.nudge == 0 {
				g.release(t)
			}
		}
	}
	wake := time.Duration(0)
	for _, g := range d.gpus {
		g.share()
		g.flag()
		if w := g.wake(); w != 0 && (wake == 0 || w < wake) {
			wake = w
		}
	}
	return wake
}

// latch records that t is owed too much, until that is made up for: the debt
// holds back others even if they gain by running together.
func (g *GPU) latch(t *tenant, owing time.Duration) {
	switch {
	case !t.ready():
		t.owed = false
	case g.measured == t:
		t.owed = true
	case g.trying:
		t.owed = false
	case t.lag > owing:
		t.owed = true
	case t.lag <= 0:
		t.owed = false
	}
}

// owing returns the lag of one tenant that holds back the others.
func (g *GPU) owing() time.Duration { return g.half() * 2 / 5 }

// ready says whether t wants to run and may.
func (t *tenant) ready() bool { return t.sessions > 0 && t.wants && !t.dry && !t.share.Held && !t.mute }

// overrun ends the wait for a tenant that did not drain in time: the others go
// on, and it is charged for as long as it has work on the GPU.
func (g *GPU) overrun() {
	for _, t := range g.tenants {
		if !t.drains {
			continue
		}
		passed := g.now - t.paused
		if passed >= suspect {
			g.scheduler.suspect(t)
		}
		if passed >= g.scheduler.config.Drain && !t.settled {
			t.settled = true
			t.stats.Overruns++
			if len(t.unit.members) > 1 {
				continue
			}
			t.state.Late, g.changed = true, true
			if !t.answered {
				g.silence(t)
			}
		}
	}
}

// silence gives t no turn until it says something: nobody waits for it again.
func (g *GPU) silence(t *tenant) {
	g.waited(t)
	t.mute, t.state.Mute, g.changed = true, true, true
}

// rank lists the ready units of a domain, the first to go first.
func (h *Scheduler) rank(d *domain) {
	h.units = h.units[:0]
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			u := t.unit
			u.granted, u.blocked = false, false
			if t != u.members[0] || !slices.ContainsFunc(u.members, (*tenant).ready) {
				continue
			}
			u.rank = h.rankOf(u)
			h.units = append(h.units, u)
		}
	}
	slices.SortStableFunc(h.units, func(a, b *unit) int { return a.rank.compare(b.rank) })
}

// rankOf ranks a unit. A running unit goes on until others are owed half a turn
// more than it, and for its minimum. A gang is owed the least of its GPUs'
// debts: it is as fast as its slowest.
func (h *Scheduler) rankOf(u *unit) rank {
	r := rank{lag: first, class: Idle}
	for _, t := range u.members {
		if !t.ready() {
			continue
		}
		class, lag := t.share.Class, t.lag
		if class == Normal && t.hurried() && t.lag > -h.config.Turn {
			class = Realtime
		}
		switch {
		case t.gpu.measured == t:
			lag = first
		case t.state.Mode == Pause || t.nudge != 0:
		case t.gpu.now-t.opened < h.config.Minimum:
			lag = first - 1
		default:
			lag += t.gpu.half()
		}
		r.class, r.lag = max(r.class, class), min(r.lag, lag)
	}
	return r
}

// lag returns the smallest debt to a unit on any of its GPUs.
func (u *unit) lag() time.Duration {
	least := first
	for _, t := range u.members {
		if t.ready() {
			least = min(least, t.lag)
		}
	}
	return least
}

// half returns half a turn: longer with more tenants in turns, because a
// hand-over costs the same.
func (g *GPU) half() time.Duration {
	n, gang := 2, 1
	for _, t := range g.tenants {
		if t.ready() {
			n++
			if len(t.unit.members) > 1 {
				gang = 2 // a gang loses more by a hand-over
			}
		}
	}
	return g.scheduler.config.Turn / 2 * time.Duration(gang*max(n, 4)) / 4
}

// fits says whether a unit can run beside those before it.
func (u *unit) fits() bool {
	for _, t := range u.members {
		if t.share.Held || t.dry {
			return false
		}
		for _, o := range t.gpu.tenants {
			if o.unit != u && (o.unit.granted || o.unit.blocked) && o.ready() && conflict(o, t) {
				return false
			}
		}
	}
	return true
}

// conflict says whether two ready tenants cannot run at once, where a goes
// first: one of them is owed, or they gain nothing by it.
func conflict(a, b *tenant) bool {
	g := a.gpu
	switch {
	case g.scheduler.config.Turns:
		return true
	case a.unit.rank.class > b.unit.rank.class:
		return true
	case a.light(g.now) || b.light(g.now):
		return false
	}
	return !g.together || a.owed || b.owed || a.tarries() || b.tarries()
}

// hold pauses t if others go first. A tenant that wants nothing may begin at
// once if nobody runs alone.
func (g *GPU) hold(t *tenant) {
	if t.state.Mode != Run || t.nudge != 0 {
		return
	}
	if t.ready() {
		if t.unit.granted {
			return
		}
		g.system.Preempted++
	} else if g.mayBegin(t) {
		return
	}
	g.pause(t)
}

// mayBegin says whether t, which wants nothing, could run if it wanted to.
func (g *GPU) mayBegin(t *tenant) bool {
	if t.share.Held || t.dry || g.scheduler.config.Turns || t.wants {
		return false
	}
	if t.light(g.now) || t.hurried() {
		return true
	}
	for _, o := range g.tenants {
		if o != t && o.unit.granted && o.ready() &&
			(o.unit.rank.class > t.share.Class || !o.light(g.now) && o.owed) {
			return false
		}
	}
	return true
}

func (g *GPU) pause(t *tenant) {
	t.state = State{Mode: Pause, Turn: t.state.Turn}
	t.drains, t.settled, t.paused, t.held, t.nudge = t.wants, false, g.now, g.now, 0
	g.changed = true
	g.wait(t)
}

// release lets t run where it may, once the tenants that it cannot run beside
// have drained.
func (g *GPU) release(t *tenant) {
	switch {
	case t.state.Mode == Open:
	case t.opens():
		g.open(t, Open)
		if g.freedom.on && !t.wants && t.ever && g.now-t.rested < silence { // until its next report
			g.want(t, false)
		}
	case t.state.Mode != Pause:
	case t.ready() && t.unit.granted && t.unit.clear():
		g.open(t, Run)
	case !t.wants && g.mayBegin(t):
		g.open(t, Run)
	}
}

// alone says whether nobody else is active on any of the unit's GPUs.
func (u *unit) alone() bool {
	for _, t := range u.members {
		if t.gpu.alone() != t {
			return false
		}
	}
	return true
}

// clear says whether the tenants that the unit cannot run beside have drained
// on all of its GPUs. A tenant that must not wait does not wait for that
// either.
func (u *unit) clear() bool {
	for _, t := range u.members {
		if (t.hurried() || t.light(t.gpu.now)) && !t.gpu.scheduler.config.Turns {
			continue
		}
		for _, o := range t.gpu.tenants {
			if o.unit != u && o.draining() && !o.light(t.gpu.now) {
				return false
			}
		}
	}
	return true
}

func (g *GPU) open(t *tenant, m Mode) {
	if t.state.Mode == Pause {
		g.scheduler.turns++
		g.waited(t)
		t.stats.Turns++
		t.opened = g.now
		t.crowded = slices.ContainsFunc(g.tenants, func(o *tenant) bool { return o != t && o.active(g.now) })
		t.state.Turn = g.scheduler.turns
	}
	if m == Open {
		t.looked = g.now
	} else if t.state.Mode == Open {
		t.closed = g.now
	}
	t.state = State{Mode: m, Turn: t.state.Turn}
	t.drains, t.settled, t.nudge, t.answered, t.mute = false, false, 0, false, false
	g.changed = true
}

// A census is how many of a GPU's tenants run, must not wait, and have not drained in time; and
// whether one waits for them.
type census struct {
	running, hurried, late int
	waiting                bool
}

func (g *GPU) census() (c census) {
	c.waiting = g.trying // a trial should be short
	for _, t := range g.tenants {
		if t.settled {
			c.late++
		}
		if t.sessions > 0 && t.hurried() { // it may come at any time
			c.hurried++
		}
		if t.runs() {
			c.running++
		}
		c.waiting = c.waiting || t.ready() && t.state.Mode == Pause
	}
	return c
}

// flag tells running tenants whether others run beside them, and whether others
// wait for them.
func (g *GPU) flag() {
	c, watched := g.census(), g.watched()
	for _, t := range g.tenants {
		if t.sessions == 0 {
			continue
		}
		s := t.state
		s.Slice, s.Pace = g.throttle(t, c)
		if s.Mode != Run {
			s.Beside = s.Mode == Open && !t.unit.alone()
			s.Haste = s.Mode == Open && watched
			g.changed = g.changed || s != t.state
			t.state = s
			continue
		}
		s.Beside = c.running > 1 || c.running == 1 && !t.runs()
		s.Haste = c.waiting
		s.Urgent = c.hurried > 1 || c.hurried == 1 && !t.hurried()
		s.End = g.end(t)
		if s != t.state {
			g.changed = g.changed || s.tells(t.state) || g.scheduler.config.Turns
			t.state = s
		}
	}
}

// throttle returns how long t's time slice is, or how far it is slowed down; 0: as the driver has it, or not at all.
func (g *GPU) throttle(t *tenant, c census) (slice time.Duration, pace float64) {
	switch config := &g.scheduler.config; {
	case config.Concurrent:
		if g.measured != t {
			pace = t.curb
		}
	case (t.state.Late || t.settled && len(t.unit.members) == 1) && c.late < 2 && config.Slices:
		slice = sliceLeast // of several, the switches would cost the others more
	default:
		slice = time.Duration(t.curb * float64(sliceMost))
	}
	return slice, pace
}

// tells says whether a running tenant is told of the change from another state: not of its end alone.
func (s State) tells(before State) bool {
	return s.Slice != before.Slice || s.Pace != before.Pace || s.Beside != before.Beside || s.Haste != before.Haste ||
		s.Urgent != before.Urgent
}

// end returns when others are expected to go before t; 0: nobody waits, or will
// in a moment.
func (g *GPU) end(t *tenant) time.Duration {
	if g.measured == t {
		return t.pace.tried + measureTime
	}
	end := time.Duration(0)
	if t.share.Limit < 1 && t.wants {
		// The bucket fills while it empties.
		end = g.now + max(time.Duration(float64(t.bucket)/(1-t.share.Limit)), dregs)
	}
	half := g.half()
	for _, o := range g.tenants {
		if o == t || !o.expected(g.now) || o.dry || o.share.Held || o.state.Mode != Pause ||
			o.unit.rank.class < t.unit.rank.class {
			continue
		}
		least, owed := g.scheduler.config.Minimum, o.unit.lag()
		if !o.wants { // t has its part of a round before o is back
			least, owed = max(least, time.Duration(t.part*float64(2*g.scheduler.config.Turn))), o.lag
		}
		gap := t.unit.lag() + half - owed
		at := g.now
		if gap >= 0 {
			at += time.Duration(float64(gap)/max(1+o.part-t.part, 0.05)) + 1
		}
		if at = max(at, t.opened+least); end == 0 || at < end {
			end = at
		}
	}
	return end
}

// rate returns the part of its lone pace that t has while it runs, as far as is
// known.
func (t *tenant) rate() float64 {
	if t.state.Beside {
		return t.pace.rateOr(0.5)
	}
	return 1
}

// wake returns the time of the next decision, always after now.
func (g *GPU) wake() time.Duration {
	var at time.Duration
	sooner := func(t time.Duration) {
		if t = max(t, g.now+10*time.Microsecond); at == 0 || t < at {
			at = t
		}
	}
	for _, t := range g.tenants {
		if t.sessions == 0 {
			continue
		}
		if t.nudge != 0 {
			sooner(t.nudge)
		}
		if t.drains {
			g.wakeDrain(t, sooner)
		}
		if t.wants && t.dry {
			sooner(g.now + 1 + time.Duration(float64(g.enough(t)-t.bucket)/t.share.Limit))
		}
		if t.ready() && t.state.Mode == Run {
			g.wakeLag(t, sooner)
		}
		if t.wants && t.state.Mode != Open && t.light(g.now) {
			sooner(t.began + 2*brief + 1)
		}
		if !t.wants && t.ever && t.state.Mode != Open && g.now-t.rested < silence {
			sooner(t.rested + silence)
		}
	}
	return at
}

// minds says whether it matters to others when a running tenant is owed no more:
// whether they could run beside it then.
func (g *GPU) minds() bool {
	return g.together || slices.ContainsFunc(g.tenants, func(t *tenant) bool {
		return t.sessions > 0 && !t.wants && t.state.Mode == Pause
	})
}

// wakeLag wakes when t, which runs, has had its part or is owed too much.
func (g *GPU) wakeLag(t *tenant, sooner func(time.Duration)) {
	const soon = 500 * time.Microsecond
	if end := t.state.End; end > g.now && t.state.Beside { // it is slower there: its end comes later, again and again
		sooner(max(end, g.now+soon))
	} else if end > g.now {
		sooner(end)
	} else if end != 0 && !slices.ContainsFunc(g.tenants, (*tenant).draining) {
		// tenants that should be first by now are held up, and no drain, which is told of, ends that
		sooner(g.now + soon)
	}
	owing := g.owing()
	switch gain := t.part - t.rate(); {
	case t.unit.rank.class > t.share.Class && gain < 0: // it must not wait, until it is ahead by a turn
		sooner(g.now + time.Duration(float64(t.lag+g.scheduler.config.Turn)/-gain) + 1)
	case t.owed && gain < 0 && t.lag > 0 && g.minds():
		sooner(g.now + time.Duration(float64(t.lag)/-gain) + 1)
	case !t.owed && gain > 0 && t.state.Beside && t.lag <= owing:
		sooner(g.now + time.Duration(float64(owing-t.lag)/gain) + 1)
	}
	if g.measured == t {
		sooner(t.pace.tried + measureTime)
	}
	if g.trying {
		for _, d := range []time.Duration{tryTime, 3 * tryTime} {
			if at := g.triedAt + d; at > g.now {
				sooner(at)
			}
		}
	}
}
