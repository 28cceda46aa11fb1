package schedule

import (
	"math"
	"time"
)

// A pace is how fast a tenant progresses: alone, and beside others.
type pace struct {
	solo, beside rate
	fresh, tried time.Duration // when it was found what it does alone, and when that was to be measured
	old          float64       // its cost before that, where it was measured again; 0 not
	before       bool          // the next report tells of the time before a trial, too
	confirmed    uint          // so many times it came to the same: it is believed twice as long each time
	noise        struct{ solo, beside noise }
	steady       rate          // while it was open, and alone for long; full: it was always busy then
	full         bool          //
	settled      time.Duration // when that was seen last
	latest       stretch       // what was open, and seemed alone: the next report tells
	window       struct {      // since the last Usage
		solo, beside time.Duration
		given        time.Duration // service that was booked for the time beside others
	}
}

// A stretch is the time of which an open tenant reported at once.
type stretch struct {
	launched   float64
	busy, over time.Duration
}

// A rate is recent launches over seconds; older ones count less.
type rate struct{ launches, seconds float64 }

// each returns the seconds of a launch; 0 if none was seen.
func (r rate) each() float64 {
	if r.launches == 0 {
		return 0
	}
	return r.seconds / r.launches
}

const (
	soloEnough   = 4 * time.Millisecond   // tell what a launch takes alone
	soloMemory   = 400 * time.Millisecond // older ones than that count half as much, and so on;
	soloMost     = 8 * time.Second        // at most so, where launches differ much
	certain      = 0.05                   // relative error of a lone pace that is remembered for long enough,
	vague        = 0.1                    // and of one that new launches may change
	offMost      = 0.3                    // no error counts for more
	steadyMemory = 2 * time.Second        // of a pace alone and open, which holds
	steadyLast   = 10 * time.Minute       // for so long, as long as what is measured
	drift        = 0.2                    // differs from it by no more: so much do clocks
	turnsDiffer  = 0.1                    // so much, at most, does the pace in turns differ from it
	noiseFirst   = 0.0005                 // until more is known
	noiseMemory  = 100 * time.Millisecond
	besideEnough = 15 * time.Millisecond
	besideMemory = 500 * time.Millisecond
)

func (r *rate) add(launches float64, over, memory time.Duration) {
	r.launches += launches
	if r.seconds += over.Seconds(); r.seconds > memory.Seconds() {
		r.launches /= 2
		r.seconds /= 2
	}
}

// A noise tells how much launches differ from one another.
type noise struct {
	square float64 // seconds: over as many, the relative variance of the rate is 1
	last   float64 // seconds that a launch took by the last report
}

// add compares a report with the last one.
func (n *noise) add(launches float64, over time.Duration) {
	took := over.Seconds()
	each := took / max(launches, 0.5)
	if n.last == 0 {
		n.square = noiseFirst
	} else {
		off := (each - n.last) / max(each, n.last)
		n.square += (off*off/2*took - n.square) * min(took/noiseMemory.Seconds(), 0.5)
	}
	n.last = each
}

// enough returns the time in which launches tell their rate up to a relative error.
func (n *noise) enough(off float64) time.Duration {
	return min(time.Duration(n.square/(off*off)*float64(time.Second)), soloMost)
}

// off returns the relative error of a rate.
func (n *noise) off(r rate) float64 {
	return min(math.Sqrt(n.square/max(r.seconds, soloEnough.Seconds())), offMost)
}

// fade limits the weight of the rate to that of so much time.
func (r *rate) fade(to time.Duration) {
	if r.seconds > to.Seconds() {
		r.launches *= to.Seconds() / r.seconds
		r.seconds = to.Seconds()
	}
}

// sampled returns the seconds that a launch took alone in the latest measurements, 0 if unknown.
func (p *pace) sampled() float64 {
	if p.solo.seconds < soloEnough.Seconds() {
		return 0
	}
	return p.solo.each()
}

// cost returns the seconds that a launch takes alone, 0 if unknown. A measurement beside others is short, at
// the clock that the GPU's power limit leaves to all of them. What the program took in seconds alone is better,
// as long as it seems to do the same.
func (p *pace) cost() float64 {
	c, steady := p.sampled(), p.steady.each()
	if p.full && p.steady.seconds > steadyMemory.Seconds()/2 && math.Abs(steady/c-1) <= drift {
		return steady
	}
	return c
}

// inTurns returns the pace of launches in turns of their own, as a part of that in a long lone run: clocks and caches
// differ. It is 1 if such a run is not known. A program that slows itself down gains turnsDiffer at most.
func (p *pace) inTurns() float64 {
	cost, sampled := p.cost(), p.sampled()
	if cost == 0 || sampled == 0 {
		return 1
	}
	return min(max(cost/sampled, 1-turnsDiffer), 1+turnsDiffer)
}

// cost returns the seconds that a launch takes alone, or else took about while t was
// open and nobody else was there; 0 if both are unknown.
func (t *tenant) cost() float64 {
	if c := t.pace.cost(); c > 0 {
		return c
	}
	return t.pace.steady.each()
}

// settle books what an open tenant did while nobody else was there. The time in which it was always busy
// counts alone, once there was some.
func (p *pace) settle(now time.Duration, s stretch) {
	busy, full := s.busy, s.over >= silence/2 && s.busy >= s.over/50*49
	switch {
	case full && !p.full:
		p.steady = rate{}
	case p.full && !full:
		return
	}
	if p.full = full; full {
		p.settled, busy = now, s.over // the gaps between its launches belong to its pace
	}
	p.steady.add(s.launched, busy, steadyMemory)
}

// stale says whether the lone pace is too old.
func (p *pace) stale(now time.Duration) bool { return now-p.fresh > staleTime<<p.confirmed }

// age reduces the weight of an old lone pace. What was measured before the tenant came is from another
// phase of its program, such as the one in which it began, and counts least.
func (p *pace) age(now, came time.Duration) {
	p.full = p.full && now-p.settled <= steadyLast
	if !p.stale(now) {
		return
	}
	if p.old = p.sampled(); p.fresh != 0 && p.fresh < came {
		p.noise.solo = noise{}
	}
	p.weaken()
}

// weaken limits the weight of the lone pace, so that even a little new data counts: the more launches
// differ, the less.
func (p *pace) weaken() { p.solo.fade(max(soloEnough, p.noise.solo.enough(vague))) }

// confirm compares a new measurement of the lone pace with the old one.
func (p *pace) confirm() {
	c := p.sampled()
	if p.old == 0 || c == 0 || p.solo.seconds < measured.Seconds() {
		return
	}
	if math.Abs(c/p.old-1) > alike {
		p.confirmed = 0
	} else if p.confirmed < confirmedMost {
		p.confirmed++
	}
	p.old = 0
}

// doubt makes the lone paces of all but t old: what made its pace wrong may have made theirs so.
func (g *GPU) doubt(t *tenant) {
	for _, o := range g.tenants {
		if o != t {
			o.pace.fresh = min(o.pace.fresh, g.now-doubtful-1)
		}
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

// rateOr returns the rate, or a default if it is unknown.
func (p *pace) rateOr(other float64) float64 {
	if r, known := p.rate(); known {
		return r
	}
	return other
}

// ran records time in which the tenant ran.
func (p *pace) ran(passed, service time.Duration, alone bool) {
	if alone {
		p.window.solo += passed
	} else {
		p.window.beside += passed
		p.window.given += service
	}
}

// idle takes the latest time out of the window and returns the service that was
// booked for it.
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
	return service + time.Duration(p.inTurns()*float64(d))
}

// learn ends the tenant's window with its processes' reports, and books the
// resulting service beside others.
func (g *GPU) learn(t *tenant, u Usage) {
	p, n := &t.pace, float64(u.Launched)
	t.longest = max(t.longest-t.longest/16, min(u.Longest, time.Second))
	if u.Solo > 0 && u.SoloTime > 0 {
		p.age(g.now, t.came)
		was, over := p.sampled(), min(u.SoloTime, time.Second)
		launches := float64(u.Solo) * over.Seconds() / u.SoloTime.Seconds()
		p.noise.solo.add(launches, over)
		p.solo.add(launches, over, max(soloMemory, p.noise.solo.enough(certain)))
		p.fresh = g.now
		p.confirm()
		if was > 0 && math.Abs(p.sampled()/was-1) > wrong {
			g.doubt(t)
		}
	}
	until := g.now
	if t.state.Mode != Open {
		until = t.closed
	}
	over := until - t.looked
	if busy := min(max(u.Busy, 0), over); t.state.Mode == Open || busy > 0 {
		if t.state.Mode == Open && t.wants && over-busy > silence {
			g.lapse(t)
		}
		t.looked = until
		g.learnOpen(t, n, busy, over)
		return
	}
	w := p.window
	p.window.solo, p.window.beside, p.window.given = 0, 0, 0
	before := p.before
	p.before = false
	if w.beside <= w.solo/8 { // a page's change and its notice lie a moment apart
		return
	}
	c := p.cost()
	if c > 0 {
		n = max(n-w.solo.Seconds()/c, 0)
	} else {
		n *= w.beside.Seconds() / (w.beside + w.solo).Seconds()
	}
	if g.together && !before { // otherwise it shows hand-overs
		p.noise.beside.add(n, w.beside)
		p.beside.add(n, w.beside, besideMemory)
	}
	if c > 0 && !t.settled { // what that has is seen by what it leaves
		service := min(time.Duration(n*c*1e9), w.beside+besideEnough) // it may have run before the window
		t.lag += w.given - service
		t.bill.served += service - w.given
		t.pay(max(service-w.given, 0))
	}
	if over, other, _ := g.overrunner(); other == t && t.cost() > 0 { // it had what t left
		rest := max(w.beside-time.Duration(n*t.cost()*1e9), 0)
		t.bill.charged -= rest
		over.book(rest, rest)
	}
	t.settle(0)
}

const (
	staleTime     = 4 * time.Second        // a lone pace that is older is measured again,
	measureTime   = 30 * time.Millisecond  // for so long; and until
	measured      = 60 * time.Millisecond  // tell it,
	measureGap    = 200 * time.Millisecond // so often,
	openGap       = time.Second            // or so often while all are open and it may be wrong
	alike         = 0.1                    // paces differ by less where the program does the same,
	wrong         = 0.33                   // and by more where one was measured beside an unknown program
	confirmedMost = 2                      // which is believed so often
)

// measure picks a tenant to run alone for a while, because it runs beside
// others and its lone pace is no longer known.
func (g *GPU) measure() {
	if m := g.measured; m != nil && (!m.contends(g.now) || g.now-m.pace.tried >= measureTime) {
		g.measured = nil
	}
	if g.measured != nil || g.scheduler.config.Turns {
		return
	}
	contenders, most := 0, -first
	for _, t := range g.tenants {
		if t.contends(g.now) {
			most = max(most, t.lag)
			contenders++
		}
	}
	next := g.unmeasured(most)
	if next != nil && contenders > 1 {
		next.pace.tried = g.now
		if next.pace.age(g.now, next.came); g.freedom.on && next.doubted() {
			next.pace.weaken()
		}
		g.measured, g.measuredAt = next, g.now
	}
}

// unmeasured returns the first contending tenant whose lone pace is not known and was not measured a
// moment ago; nil: there is none. most is the largest lag.
func (g *GPU) unmeasured(most time.Duration) *tenant {
	for _, t := range g.tenants {
		// A tenant that joins again and again, and is ahead because of that,
		// gains little.
		if !t.contends(g.now) || t.tarries() ||
			t.lag < most-g.scheduler.config.Turn && g.now-g.measuredAt < staleTime/4 {
			continue
		}
		p := &t.pace
		long := p.solo.seconds >= measured.Seconds()
		known, gap := long && !p.stale(g.now), measureGap
		if g.freedom.on {
			if gap = openGap; !t.doubted() {
				gap = staleTime
			}
			known = p.cost() > 0 && !t.unsure() && (long || p.tried > g.freedom.since)
		}
		if !known && (p.tried == 0 || g.now-p.tried > gap) {
			return t
		}
	}
	return nil
}

// The gain of running together is tried when tenants contend, and again after a
// while if they take turns.
const (
	worth    = 1.07                  // parts of lone paces that are clearly better than turns,
	enough   = 1.03                  // and that are so still, once they were
	tryTime  = 40 * time.Millisecond // together
	tryMost  = 10 * tryTime          // while too few launches were seen
	tryGap   = time.Second
	tryAgain = 3 * time.Second
)

// try lets contending tenants run together for a moment, whatever they are
// owed, to see how they progress.
func (g *GPU) try() {
	due := g.freedom.trial == none && g.freedom.due(g) && g.tellsMore()
	if g.measured != nil || g.scheduler.config.Turns || g.freedom.on || !due && g.triedAt != 0 && g.now-g.triedAt < tryGap {
		return
	}
	contenders, fresh := 0, g.triedAt == 0
	for _, t := range g.tenants {
		if t.contends(g.now) {
			contenders++
			_, known := t.pace.rate()
			fresh = fresh || !known && t.pace.cost() > 0
			if t.pace.cost() == 0 && t.pace.tried == 0 { // it is measured first
				return
			}
		}
	}
	if contenders < 2 || !due && !fresh && (g.together || g.now-g.triedAt < tryAgain) {
		return
	}
	g.triedAt, g.tried, g.together = g.now, true, true
	for _, t := range g.tenants {
		if t.contends(g.now) {
			t.pace.beside.fade(tryTime)
		}
		if due { // what was seen while tenants were held back tells nothing
			t.pace.beside, t.pace.before = rate{}, true
		}
	}
	if due {
		g.freedom.trial = plain
	}
}

// tries says whether the trial is on; it is longer while the pace of a
// contending tenant is unknown, or too few launches were seen to tell that
// everybody has its part.
func (g *GPU) tries() bool {
	if g.measured != nil || g.triedAt == 0 || g.now-g.triedAt >= tryMost {
		return false
	}
	long := tryTime
	if g.freedom.trial != none && g.undecided() {
		long = tryMost
	}
	for _, t := range g.tenants {
		if _, known := t.pace.rate(); !known && t.contends(g.now) {
			long = max(long, 3*tryTime)
		}
	}
	return g.now-g.triedAt < long
}

// judge finds whether contending tenants gain by running together.
func (g *GPU) judge() {
	if g.measured != nil || g.triedAt == 0 || g.trying || !g.together || g.freedom.trial == curbed {
		return
	}
	sum, contenders := 0.0, 0
	for _, t := range g.tenants {
		if t.contends(g.now) {
			contenders++
		}
		if t.active(g.now) && !t.light(g.now) { // a tenant that rests for a moment counts
			r, _ := t.pace.rate()
			sum += r
		}
	}
	if contenders < 2 {
		return
	}
	least := enough
	if g.tried {
		least, g.tried = worth, false
	}
	g.together = sum > least
}

// contends says whether t is one of the tenants that need to be separated: it
// wants the GPU, and for long.
func (t *tenant) contends(now time.Duration) bool {
	return t.ready() && t.share.Class == Normal && !t.light(now) && !t.assumed
}
