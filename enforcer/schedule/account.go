package schedule

import (
	"slices"
	"time"
)

const (
	linger  = 100 * time.Millisecond // a tenant that wanted the GPU so recently still shares the time
	silence = time.Second            // a tenant that wanted nothing for so long does not count
	// turns that a tenant can be ahead; more is forgotten, as if nobody had it, except for
	memory   = 3
	debtMost = 10 * time.Second       // that its drains overran
	late     = 10 * time.Millisecond  // the longest delay of a Rest, after which the bill is settled
	brief    = 3 * time.Millisecond   // a tenant that wants the GPU for at most so long, and
	seldom   = 0.3                    // for at most this part of the time, is light
	dregs    = 100 * time.Microsecond // a limit's bucket with no more counts as empty
)

// advance brings the books up to now, a slot of the history at a time; time
// beyond the history is one step.
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
	g.share()
	if index(now) != index(g.now) {
		for _, t := range g.tenants {
			t.remember(g.now, now)
		}
	}
	g.now = now
	if g.freedom.on && g.domain.open {
		g.uncharged += passed
	}
	g.serve(passed)
	for _, t := range g.tenants {
		g.age(t, passed)
	}
	g.forget()
}

// age books the effects of passing time, whether the tenant runs or not.
func (g *GPU) age(t *tenant, passed time.Duration) {
	if t.state.Mode != Open || !g.freedom.on { // else it reports that
		weight := min(passed.Seconds(), 1)
		if t.duty *= 1 - weight; t.wants {
			t.duty += weight
		}
	} else if t.glimpse.due += time.Duration(t.need() * float64(passed)); t.wants && g.now-t.looked > quiet {
		g.lapse(t)
	}
	if t.expected(g.now) && t.state.Mode != Open && !t.share.Held && !t.mute {
		due := time.Duration(t.part * float64(passed))
		if t.lag += due; t.lag > 5*g.scheduler.config.Turn { // no half is shorter than half a turn
			t.lag = min(t.lag, 10*g.half())
		}
		if t.wants {
			t.bill.wanted += passed
		}
		t.past.slot(g.now).due += due
		t.settle(late)
	}
	expected := t.expected(g.now)
	if alone := t.part > 0 && g.weights == t.share.Weight; t.lag < 0 && (!expected || alone && t.tarries()) {
		rate := 1.0                   // time makes up for its use, and earns nothing
		if !expected && t.tarries() { // no faster than if it went on
			rate = t.share.Weight / (t.share.Weight + g.weights)
		}
		t.lag = min(t.lag+time.Duration(rate*float64(passed)), 0)
	}
	if t.share.Limit == 1 {
		return
	}
	t.bucket = min(t.bucket+time.Duration(t.share.Limit*float64(passed)), g.brim(t))
	if t.dry && t.wants && !t.share.Held {
		t.stats.Throttled += passed
	}
	if t.dry && t.bucket >= g.enough(t) {
		t.dry = false
	}
}

// share finds each tenant's part of the time, by weight among those who are
// active.
func (g *GPU) share() {
	weights, least := 0.0, Idle
	defer func() { g.weights = weights }()
	for _, t := range g.tenants {
		t.part = 0
		if !t.active(g.now) || t.share.Class < least {
			continue
		}
		if least == Idle && t.share.Class > Idle {
			weights, least = 0, Normal
		}
		weights += t.share.Weight
	}
	for _, t := range g.tenants {
		if t.active(g.now) && t.share.Class >= least {
			t.part = min(t.share.Weight/weights, t.share.Limit)
		}
	}
}

// active says whether t counts among those who share the GPU.
func (t *tenant) active(now time.Duration) bool {
	return t.sessions > 0 && !t.share.Held && !t.mute && (t.wants && !t.assumed || t.ever && now-t.rested < linger)
}

// expected says whether t wants the GPU, or is likely to want it again in a
// moment: a tenant in turns reports only after its last turn.
func (t *tenant) expected(now time.Duration) bool {
	return t.wants || t.gpu.scheduler.config.Turns && t.active(now)
}

// runs says whether work of t may be on the GPU.
func (t *tenant) runs() bool { return t.state.Mode == Run && t.wants || t.drains }

// draining says whether tenants that cannot run beside t wait for its last
// work.
func (t *tenant) draining() bool { return t.drains && !t.settled || t.nudge != 0 }

// light says whether t wants the GPU so briefly and seldom that nobody needs to
// make room for it.
func (t *tenant) light(now time.Duration) bool {
	return !t.gpu.scheduler.config.Turns && t.burst > 0 && t.burst <= brief && t.duty <= seldom &&
		(!t.wants || t.state.Mode == Open || now-t.began <= 2*brief)
}

// serve books the time that passed as service of the running tenants.
func (g *GPU) serve(passed time.Duration) {
	heavy, light, open := 0, 0, 0
	for _, t := range g.tenants {
		switch {
		case t.state.Mode == Open && t.wants: // it reports what it did
			open++
		case !t.runs():
		case t.light(g.now):
			light++
		default:
			heavy++
		}
	}
	if slices.ContainsFunc(g.tenants, func(t *tenant) bool {
		return t.ready() && t.unit.granted && t.state.Mode == Pause
	}) {
		g.system.Handover += passed
	}
	if heavy+light+open > 1 {
		g.system.Together += passed
	}
	if heavy+light == 0 {
		return
	}
	rates := 0.0
	for _, t := range g.tenants {
		if t.runs() && !t.light(g.now) {
			rates += t.pace.rateOr(1 / float64(heavy))
		}
	}
	over, other, leak := g.overrunner()
	for _, t := range g.tenants {
		switch {
		case !t.runs():
		case t.light(g.now): // it gets what it wants, and nobody makes room for it
			t.lag -= time.Duration(t.part * float64(passed))
			t.bill.served += passed
			t.bill.charged += passed / time.Duration(heavy+light)
			t.pay(passed)
			t.settle(late)
		case heavy == 1:
			t.serve(passed, t.pace.inTurns(), 1/float64(1+light), true)
		case t == over: // and what the other one leaves, when that tells
			t.serve(passed, leak, leak*2/float64(2+light), false)
		case t == other:
			t.serve(passed, t.pace.rateOr(1-leak), (1-leak)*2/float64(2+light), false)
		default:
			rate := t.pace.rateOr(1 / float64(heavy))
			t.serve(passed, rate, rate/max(rates, 1)*float64(heavy)/float64(heavy+light), false)
		}
	}
}

// serve books one part of the time as service, another as the GPU's time.
func (t *tenant) serve(passed time.Duration, rate, charge float64, alone bool) {
	d := time.Duration(rate * float64(passed))
	t.pace.ran(passed, d, alone)
	t.book(d, time.Duration(charge*float64(passed)))
	if t.settled {
		t.stats.Overrun += passed
	}
	if t.drains && t.gpu.now-t.paused > patience && t.heldElsewhere() {
		t.stats.Convoy += passed
	}
	t.settle(late)
}

// book books service, and the GPU's time.
func (t *tenant) book(service, charge time.Duration) {
	t.lag -= service
	if t.settled && t.crowded {
		t.debt = min(t.debt+service, debtMost)
	}
	t.bill.served += service
	t.bill.charged += charge
	t.pay(max(service, charge))
}

// pay takes what t used out of the bucket of its limit.
func (t *tenant) pay(d time.Duration) {
	if t.share.Limit < 1 {
		t.bucket -= d
	}
}

// overrunner returns the tenant that did not drain in time, the one that runs beside
// it, and the least part that the first one has; nil if there are others. It has what
// the other one leaves. If the launches of that do not tell, the time slices do.
func (g *GPU) overrunner() (over, other *tenant, leak float64) {
	for _, t := range g.tenants {
		switch {
		case !t.runs() || t.light(g.now):
		case t.settled && over == nil:
			over = t
		case !t.settled && other == nil:
			other = t
		default:
			return nil, nil, 0
		}
	}
	switch {
	case over == nil || other == nil:
		return nil, nil, 0
	case other.cost() > 0:
		return over, other, 0
	case over.state.Slice != 0:
		return over, other, 2 * sliceLeast.Seconds() / (sliceLeast + sliceMost).Seconds()
	}
	return over, other, 0.5
}

// unwant takes back the latest wanted time, because the tenant wanted nothing
// in it.
func (t *tenant) unwant(ago time.Duration) {
	if t.state.Mode == Open {
		return
	}
	t.lag -= time.Duration(t.part * float64(ago))
	t.bill.wanted -= min(ago, t.bill.wanted)
}

// unserve takes back the latest service, because the tenant did nothing in it.
func (t *tenant) unserve(ago time.Duration) {
	if t.runs() {
		d := t.pace.idle(ago)
		t.lag += d
		t.bill.served -= d
		t.bill.charged -= min(ago, max(t.bill.charged, 0))
	}
	t.settle(0)
}

// unshare books the latest time as time in which t ran alone, because the other
// did nothing in it.
func (t *tenant) unshare(ago time.Duration) {
	w := &t.pace.window
	d := min(ago, w.beside)
	given := t.pace.idle(d)
	w.solo += d
	t.lag -= d - given
	t.bill.served += d - given
}

// only returns the one running tenant, apart from light ones; nil if there is
// none, or several.
func (g *GPU) only() (only *tenant) {
	for _, t := range g.tenants {
		if !t.runs() || t.light(g.now) {
			continue
		}
		if only != nil {
			return nil
		}
		only = t
	}
	return only
}

// A bill is what was booked and can still be taken back.
type bill struct{ served, charged, wanted time.Duration }

// settle counts what is on the bill, except the latest time.
func (t *tenant) settle(but time.Duration) {
	if d := t.bill.charged - but; d > 0 {
		t.stats.Charged += d
		t.bill.charged -= d
	}
	if d := t.bill.wanted - but; d > 0 {
		t.stats.Wanted += d
		t.bill.wanted -= d
	}
	if d := t.bill.served - but; d > 0 {
		t.stats.Served += d
		t.past.slot(t.gpu.now).served += d
		t.bill.served -= d
	}
}

// forget keeps the lags within bounds. A debt to all tenants, from hand-overs,
// is nobody's.
func (g *GPU) forget() {
	least, several := first, 0
	running := slices.ContainsFunc(g.tenants, func(t *tenant) bool {
		return t.state.Mode == Run && t.wants && t.nudge == 0 && !t.light(g.now)
	})
	for _, t := range g.tenants {
		if t.lag >= 0 {
			t.overran, t.debt = 0, 0
		} else if t.drains && !running { // not work beside others, which is forgiven: all of them wait for it
			t.overran = max(t.overran, min(g.now-t.paused, g.scheduler.config.Drain))
		}
		t.lag = max(t.lag, -memory*(g.scheduler.config.Turn+t.overran)-t.debt)
		if t.expected(g.now) && t.part > 0 {
			least = min(least, t.lag)
			several++
		}
		if t.tarries() { // its use is owed to the others
			least = 0
		}
	}
	if least <= 0 || several < 2 {
		return
	}
	for _, t := range g.tenants {
		if t.expected(g.now) && t.part > 0 {
			t.lag -= least
		}
	}
}

// tarries says whether t is ahead, and let others wait for its drain for so
// long that it owes them that time. It gets nothing until that is made up for,
// and its rest makes up for no more than its waits do.
func (t *tenant) tarries() bool { return t.lag < 0 && t.overran >= late }

// brim returns the capacity of the bucket of t's limit.
func (g *GPU) brim(t *tenant) time.Duration {
	const round = 100 * time.Millisecond
	return time.Duration(t.share.Limit * float64(round))
}

// enough returns what an empty bucket must hold again before t runs: a turn's
// worth, or each microsecond that drips in would cost a hand-over.
func (g *GPU) enough(t *tenant) time.Duration {
	turn := time.Duration((1 - t.share.Limit) * float64(g.scheduler.config.Turn))
	return min(turn, g.brim(t)/2)
}

// wait starts t's wait.
func (g *GPU) wait(t *tenant) { t.asked, t.barred = g.now, t.stats.Throttled }

// waiting returns how long t has waited to run; negative if it does not wait.
func (g *GPU) waiting(t *tenant) time.Duration {
	if !t.wants || t.share.Held || t.mute || t.state.Mode != Pause {
		return -1
	}
	return g.now - t.asked
}

// waited ends t's wait, if there is one: t may run, gave up or is held. A wait
// caused by its own limit is never late.
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

// alone returns the one tenant that wanted the GPU within the last second, or
// has the only sessions; nil if there is none, or if others must be able to go
// first at once.
func (g *GPU) alone() *tenant {
	var only, seated *tenant
	seats := 0
	for _, t := range g.tenants {
		if t.sessions == 0 {
			continue
		}
		seats++
		seated = t
		if t.hurried() {
			return nil
		}
		if t.wants || t.drains || t.state.Mode == Open || t.ever && g.now-t.rested < silence {
			if only != nil {
				return nil
			}
			only = t
		}
	}
	if only == nil && seats == 1 {
		only = seated
	}
	if g.scheduler.config.Turns || only == nil || only.share.Limit < 1 || only.share.Held {
		return nil
	}
	return only
}

// hurried says whether t's launches must not wait for others.
func (t *tenant) hurried() bool { return t.share.Class == Realtime || t.share.Wait > 0 }
