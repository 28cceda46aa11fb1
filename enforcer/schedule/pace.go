package schedule

import (
	"slices"
	"time"
)

// A pace is how fast a tenant gets on: what a launch takes while it runs alone,
// and how many it makes beside others.
type pace struct {
	costs        [5]float64    // seconds that a launch took alone, the latest first; 0 none
	solo, beside rate          // what is being measured
	fresh        time.Duration // when a cost was found last
	tried        time.Duration // when it was to be measured last
	window       struct {      // since the last Usage
		solo, beside time.Duration
		given        time.Duration // service that was booked for the time beside others
	}
}

// A rate is launches over seconds.
type rate struct{ launches, seconds float64 }

const (
	soloEnough   = 20 * time.Millisecond // and so many launches tell a cost
	soloLaunches = 8
	besideEnough = 15 * time.Millisecond  // tell a rate, and older ones than
	besideMemory = 200 * time.Millisecond // count half as much, and so on
)

// cost returns the seconds that a launch takes alone, 0 where that is unknown:
// the second least of the latest, because a program that has just begun, or
// pauses, is slower than it can be.
func (p *pace) cost() float64 {
	sorted, n := p.costs, p.known()
	slices.Sort(sorted[:n])
	switch {
	case n > 0:
		return sorted[n/4]
	case p.solo.launches > 0 && p.solo.seconds >= soloEnough.Seconds():
		return p.solo.seconds / p.solo.launches
	}
	return 0
}

// known returns how many costs were found.
func (p *pace) known() (n int) {
	for n < len(p.costs) && p.costs[n] > 0 {
		n++
	}
	return n
}

// soloed adds launches that were made alone.
func (p *pace) soloed(launches float64, over, now time.Duration) {
	if over <= 0 || launches <= 0 {
		return
	}
	p.solo.launches += launches
	p.solo.seconds += over.Seconds()
	if p.solo.seconds >= soloEnough.Seconds() && p.solo.launches >= soloLaunches {
		copy(p.costs[1:], p.costs[:])
		p.costs[0] = p.solo.seconds / p.solo.launches
		p.solo, p.fresh = rate{}, now
	}
}

// rate returns the part of its lone pace that the tenant has beside others.
func (p *pace) rate() (part float64, known bool) {
	c := p.cost()
	if c == 0 || p.beside.seconds < besideEnough.Seconds() {
		return 0, false
	}
	return min(p.beside.launches*c/p.beside.seconds, 1.2), true
}

// rateOr returns the rate, or another where it is unknown.
func (p *pace) rateOr(other float64) float64 {
	if r, known := p.rate(); known {
		return r
	}
	return other
}

// ran takes note of time that passed while the tenant ran.
func (p *pace) ran(passed, service time.Duration, alone bool) {
	if alone {
		p.window.solo += passed
	} else {
		p.window.beside += passed
		p.window.given += service
	}
}

// idle takes the latest while out of the window and returns the service that
// was booked for it.
func (p *pace) idle(ago time.Duration) (service time.Duration) {
	w := &p.window
	if w.beside > 0 {
		d := min(ago, w.beside)
		service = time.Duration(float64(w.given) * d.Seconds() / w.beside.Seconds())
		w.beside -= d
		w.given -= service
		ago -= d
	}
	d := min(ago, w.solo)
	w.solo -= d
	return service + d
}

// learn ends the tenant's window with what its processes say they did in it,
// and books the service beside others that this comes to.
func (g *GPU) learn(t *tenant, u Usage) {
	p, n := &t.pace, float64(u.Launched)
	t.longest = max(t.longest-t.longest/16, min(u.Longest, time.Second))
	if t.state.Mode == Open || u.Busy > 0 {
		busy := min(max(u.Busy, 0), g.now-t.looked)
		t.looked = g.now
		t.bill.charged += busy
		t.bill.served += busy
		t.stats.Wanted += busy
		t.settle(0)
		p.soloed(n, busy, g.now)
		return
	}
	w := p.window
	p.window.solo, p.window.beside, p.window.given = 0, 0, 0
	c := p.cost()
	if w.beside <= w.solo/8 { // a page's change and its notice lie a moment apart
		if c > 0 {
			n -= w.given.Seconds() / c
		}
		p.soloed(n, w.solo, g.now)
		return
	}
	if c > 0 {
		n = max(n-w.solo.Seconds()/c, 0)
	} else {
		n *= w.beside.Seconds() / (w.beside + w.solo).Seconds()
	}
	p.beside.launches += n
	if p.beside.seconds += w.beside.Seconds(); p.beside.seconds > besideMemory.Seconds() {
		p.beside.launches /= 2
		p.beside.seconds /= 2
	}
	if c > 0 {
		service := min(time.Duration(n*c*1e9), w.beside+besideEnough) // what ends in a window may have run before it
		t.lag += w.given - service
		t.bill.served += service - w.given
	}
	t.settle(0)
}

const (
	staleTime   = 4 * time.Second        // a lone pace that is older is measured again,
	measureTime = 30 * time.Millisecond  // for so long; one that was found less often than
	measures    = 3                      // so many times
	measureGap  = 500 * time.Millisecond // sooner
)

// measure picks a tenant that is to run alone for a while, because it runs
// beside others and nothing is known of its lone pace any more.
func (g *GPU) measure() {
	if m := g.measured; m != nil && (!m.contends(g.now) || g.now-m.pace.tried >= measureTime) {
		g.measured = nil
	}
	if g.measured != nil || g.host.config.Turns {
		return
	}
	contenders, most := 0, -first
	for _, t := range g.tenants {
		if t.contends(g.now) {
			most = max(most, t.lag)
			contenders++
		}
	}
	var next *tenant
	for _, t := range g.tenants {
		if !t.contends(g.now) || t.lag < most-g.host.config.Turn { // who comes anew again and again gains nothing
			continue
		}
		p := &t.pace
		known := p.known() >= measures && g.now-p.fresh <= staleTime
		if next == nil && !known && (p.tried == 0 || g.now-p.tried > measureGap) {
			next = t
		}
	}
	if next != nil && contenders > 1 {
		next.pace.tried = g.now
		g.measured = next
	}
}

// What tenants gain by running together is tried when others contend, and again
// after a while.
const (
	worth    = 1.05                  // parts of lone paces that are clearly better than turns
	tryTime  = 30 * time.Millisecond // together
	tryAgain = 30 * time.Second
)

// tries says whether those who contend run together for a moment, whoever is
// owed, to see how they get on.
func (g *GPU) tries() bool {
	if g.measured != nil || g.host.config.Turns {
		return false
	}
	contenders := uint64(0)
	n, enough := 0, tryTime
	for i, t := range g.tenants {
		if t.contends(g.now) {
			contenders |= 1 << (i % 64)
			n++
			if _, known := t.pace.rate(); !known {
				enough = 4 * tryTime
			}
		}
	}
	if n < 2 {
		return false
	}
	switch {
	case g.now-g.triedAt > tryAgain:
		g.tried, g.triedAt = contenders, g.now
	case contenders&^g.tried != 0:
		g.tried, g.triedAt = g.tried|contenders, g.now
	}
	return g.now-g.triedAt < enough
}

// contends says whether t is one of those who need to be told apart: it wants
// the GPU, and for long.
func (t *tenant) contends(now time.Duration) bool {
	return t.ready() && t.share.Class == Normal && !t.light(now)
}
