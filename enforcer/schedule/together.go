package schedule

import "time"

// Turns only help while the GPU is saturated. Programs that are held up by
// their own processor leave the GPU's queue empty; taking turns they would
// lose what they could do at the same time. So who is seen to be light is let
// run together with others that are, and stays so while that gives every one
// of them more than its turns would: by measured fact, not by anybody's word.
const (
	sampleTime  = 300 * time.Millisecond // of turns tell a pace
	sampleMarks = 50                     // or so many markers
	lateMarks   = 5                      // one in so many markers late: the GPU's queue is not empty
	fewMarks    = 5                      // fewer tell nothing
	reportTime  = 100 * time.Millisecond // from one report to the next
	trialTime   = 450 * time.Millisecond // until the first judgement: of two reports at least
	quietTime   = 150 * time.Millisecond // without a launch in any session's report: it is idle
	judgeTime   = 500 * time.Millisecond // from one to the next
	gain        = 1.05                   // of what turns would give

	backoffLeast = time.Second
	backoffMost  = 60 * time.Second
)

// A trial is the state of running together.
type trial struct {
	on      bool
	spoiled bool          // a tenant's markers were late
	judge   time.Duration // when to look next
	retry   time.Duration // not before
	backoff time.Duration
}

// reset forgets earlier failures, because other tenants want the GPU now; but
// trials are never closer than the least backoff.
func (r *trial) reset(now time.Duration) {
	r.backoff = 0
	r.retry = min(r.retry, now+backoffLeast)
}

// A pace is how a tenant runs: learned in its own turns, watched together.
type pace struct {
	latest struct {
		launched, marks, behind uint64
		time                    time.Duration
	}
	solo  float64 // launches per second of what is its own time; 0 unknown
	light bool

	launched    uint64        // together, between
	first, last time.Duration // reports
	pending     uint64        // launches that the latest report with any told of
	active      time.Duration // when that was
	heard       time.Duration // the latest report of all
}

// learn takes note of a turn. The time between an idle Yield and the next Ask
// is the tenant's own as well: alone it would not have launched more.
func (p *pace) learn(u Usage, cost time.Duration) {
	l := &p.latest
	l.launched += u.Launched
	l.marks += uint64(u.Marks)
	l.behind += uint64(u.Behind)
	l.time += cost
	if l.time < sampleTime && l.marks < sampleMarks {
		return
	}
	p.light = l.marks > 0 && l.behind*lateMarks < l.marks
	rate := float64(l.launched) / max(l.time, time.Millisecond).Seconds()
	if p.solo > 0 {
		rate = (rate + p.solo) / 2
	}
	p.solo = rate
	*l = pace{}.latest
}

// joins says whether t is one of those who run together, if all of them fit:
// not who is idle, because they leave the GPU to be shared.
func (t *tenant) joins() bool { return t.wants && !t.share.Held && t.share.Class != Idle }

// fits says whether t may run together with others. Who has a limit may not:
// its time could not be measured.
func (t *tenant) fits() bool { return t.pace.light && t.pace.solo > 0 && t.share.Limit == 1 }

// try lets all who want run together, if they are two or more and all fit.
func (g *GPU) try() {
	if g.together.on || g.draining || len(g.on) == 0 || g.now < g.together.retry || !g.on[0].joins() {
		return
	}
	wanting := 0
	for _, t := range g.tenants {
		if t.joins() {
			if !t.fits() {
				return
			}
			wanting++
		}
	}
	if wanting < 2 {
		return
	}
	g.finish(g.on[0], wholly)
	g.together = trial{on: true, retry: g.together.retry, backoff: g.together.backoff}
	g.together.judge = g.now + trialTime
	g.granted, g.settled, g.end = g.now, g.now, 0
	g.system.Trials++
	for _, t := range g.tenants {
		if t.joins() {
			g.join(t)
		}
	}
}

// join lets t in with those who run together. They are not judged any later
// for it.
func (g *GPU) join(t *tenant) {
	g.forgive(t)
	g.enter(t, Open)
	t.state.Watch = true
	t.pace.launched, t.pace.pending, t.pace.first, t.pace.last = 0, 0, 0, 0
	t.pace.active, t.pace.heard = g.now, g.now
}

// admit lets t in if it fits, and ends the running together if it does not.
func (g *GPU) admit(t *tenant) {
	switch {
	case !t.joins():
	case t.fits():
		g.join(t)
	default:
		g.pause()
	}
}

// watch takes note of what t did together with others.
func (g *GPU) watch(t *tenant, u Usage) {
	p := &t.pace
	p.heard = g.now
	switch {
	case g.draining:
	case u.Launched > 0:
		p.count(u.Launched, g.now)
	case g.now-p.active >= quietTime: // sooner it may be one session of several
		t.wants, t.rested = false, g.now
		g.finish(t, 0)
	}
	if u.Marks >= fewMarks && uint64(u.Behind)*lateMarks > uint64(u.Marks) {
		p.light, g.together.spoiled = false, true
	}
}

// count takes note of a report. What the first one tells of is from before as
// well, and what the last one tells of is not a whole one's: who ceased to
// launch in the middle of it was not held up by anybody.
func (p *pace) count(launched uint64, now time.Duration) {
	if p.first == 0 {
		p.first, p.last = now, now
	} else {
		p.launched += p.pending
		p.last = p.active
		p.pending = launched
	}
	p.active = now
}

// judge ends the running together where somebody gets less than its turns
// would give it, or the GPU's queue is no longer empty.
func (g *GPU) judge() {
	r := &g.together
	switch {
	case !r.on || g.draining:
		return
	case len(g.on) == 1:
		g.alone()
		return
	case r.spoiled:
	case g.now < r.judge:
		return
	case g.gained():
		r.judge = g.now + judgeTime
		return
	}
	g.system.Failed++
	r.backoff = min(max(2*r.backoff, backoffLeast), backoffMost)
	r.retry = g.now + r.backoff
	g.pause()
}

// gained says whether each gets what turns would give it, and some more, as
// far as it ran for long enough to tell; and begins the next window. Who says
// nothing at all is not believed to be well.
func (g *GPU) gained() bool {
	weights := 0.0
	for _, t := range g.on {
		weights += t.share.Weight
	}
	all := true
	for _, t := range g.on {
		p := &t.pace
		all = all && g.now-p.heard < quietTime
		if p.last > p.first {
			rate := float64(p.launched) / (p.last - p.first).Seconds()
			all = all && rate >= gain*p.solo*t.share.Weight/weights
		}
		p.launched, p.first = 0, p.last
	}
	return all
}

// alone makes a turn of what is left of running together.
func (g *GPU) alone() {
	t := g.on[0]
	if g.finish(t, 0); t.dry {
		return // it has a limit since
	}
	g.grant(t)
	t.opened = true
}
