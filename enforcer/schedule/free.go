package schedule

import (
	"math"
	"slices"
	"time"
)

// While every tenant has its part, all of them are open: no launch is held back
// or counted, and a tenant reports once a second. What a tenant lacks of its
// part is summed up, and if that becomes too much, the gate closes again.
//
// A tenant with gaps loses most by the time slices of the others: when it comes
// back from a gap, it waits for what is left of one. So shorter slices of those
// who have their part help first. They cost the GPU switches, and grow again
// while that leaves everybody its part. Where programs run at once (CUDA MPS),
// there are no slices, and the launches of those who have their part are paced
// instead.

const (
	bearable    = 0.85                   // of its lone pace is enough for a tenant that hurries
	margin      = 0.02                   // less than its part may be what a short trial missed
	lackMost    = 100 * time.Millisecond // that a tenant lacks closes the gate:
	surplus     = 50 * time.Millisecond  // as much can be made up for in advance
	glance      = 900 * time.Millisecond // tells a pace,
	glanceLeast = 90 * time.Millisecond  // and so much if launches are alike
	watch       = 2 * time.Second        // after all were opened they report more often
	quiet       = 2 * time.Second        // without a report: it has no work
	settling    = 200 * time.Millisecond // a tenant that came so lately does not work at its pace yet
	freeGap     = 500 * time.Millisecond // until all are open again; twice as long after each failure,
	freeMost    = 2 * time.Minute        // up to this
	freeLong    = 30 * time.Second       // open for so long is no failure
	doubtful    = time.Minute            // age at which a lone pace becomes doubtful

	sliceMost  = 2 * time.Millisecond   // about the driver's default
	sliceLeast = 200 * time.Microsecond // a switch takes more than half as long
	curbFirst  = 0.4                    // part of a slice at first
	paceLeast  = 0.02
	mends      = 0.25 // of its lone pace may be what a tenant gains by slices
	eases      = 0.01 // more than that, and the curbs grow
	spare      = 0.05 // more than its part is what paces aim at: see aim
)

// A freedom is the time in which all tenants of a GPU are open.
type freedom struct {
	on     bool
	since  time.Duration // when it began or ended
	lacked bool          // it ended because somebody lacked too much
	curbed time.Duration // when somebody was curbed last
	gap    time.Duration // until it may begin again; not waited for where one contends alone, unless it lacked

	trial trial // the one that is on
}

// A trial lets all tenants run, to see whether each has its part then.
type trial int8

const (
	none trial = iota
	plain
	curbed // those who are ahead are
)

// A glimpse is what an open tenant did beside others.
type glimpse struct {
	launched   float64
	busy, over time.Duration
	due        time.Duration // its part of that time
	lacks      time.Duration // of its part, summed up; below 0 it had more
	may        time.Duration // the same, as it seems; lacks is what is sure, by the doubt about its lone pace
	short      time.Duration // the same, of what the curbs of the others aim at
	pace       float64       // lately, as a part of its lone pace
	beside     rate          // before a trial with curbs
}

// need returns the part of its lone pace that t must have: what hurries is to be
// nearly as fast as alone.
func (t *tenant) need() float64 {
	if t.hurried() {
		return max(t.part, bearable)
	}
	return t.part
}

// aim returns what the curbs of the others aim at, as a multiple of what t must have. A GPU at its power
// limit has the clock that all its work leaves it. A program that needs little power has a higher one in a
// long run alone than its lone pace shows, which is measured beside others. Paces can give it more where
// somebody has more than that, because programs that run at once do more in sum. Slices would cost switches.
func (g *GPU) aim() float64 {
	if g.scheduler.config.Concurrent {
		return 1 + spare
	}
	return 1
}

// hopeful says whether all could be open, and what each has then would be known.
func (g *GPU) hopeful() bool {
	active := 0
	for _, t := range g.tenants {
		if !t.active(g.now) {
			continue
		}
		if active++; t.tarries() || t.heavy() && g.contenders() > 1 && (t.pace.cost() == 0 || g.now-t.came < settling) {
			return false
		}
	}
	return active > 1 && g.suits()
}

// goesFirst says whether lower classes do not run while t does.
func (t *tenant) goesFirst() bool { return t.active(t.gpu.now) && t.hurried() }

// heavy says whether t contends, as far as is known: who came a moment ago, or
// rested for long, may work for long now.
func (t *tenant) heavy() bool {
	awakes := t.state.Mode != Open && t.began-t.rested > linger
	return t.active(t.gpu.now) && (!t.light(t.gpu.now) || t.often() > seldom || awakes || t.gpu.now-t.came < settling)
}

// contenders counts the tenants that want the GPU for long.
func (g *GPU) contenders() (n int) {
	for _, t := range g.tenants {
		if t.heavy() {
			n++
		}
	}
	return n
}

// A prospect is what tenants will lack if all are open, as parts of their lone paces. Without two
// that contend there is nothing to lack.
type prospect struct {
	most, sure float64 // of the one that lacks most, and that it lacks at least by what is known
	least      float64 // of the one that lacks least, or has most more than its part
}

func (g *GPU) prospect() prospect {
	p := prospect{-math.MaxFloat64, -math.MaxFloat64, math.MaxFloat64}
	for _, t := range g.tenants {
		if !t.heavy() {
			continue
		}
		lack, doubt := math.MaxFloat64, 0.0
		if pace, by, known := g.foresee(t); known {
			lack, doubt = t.need()-pace, by
		}
		p.most, p.sure, p.least = max(p.most, lack), max(p.sure, lack-doubt), min(p.least, lack)
	}
	if g.contenders() < 2 {
		p.most, p.sure = -math.MaxFloat64, -math.MaxFloat64
	}
	return p
}

// content says whether every tenant had its part in a trial. What a trial was too short to tell is
// seen when all are open, once. Where nobody had more than its part, switches cost all of them.
func (g *GPU) content() bool {
	p := g.prospect()
	return (p.most <= margin || g.freedom.gap == 0 && p.sure <= margin) && (p.least <= 0 || p.most <= 0) && g.hopeful()
}

// undecided says whether more launches may tell whether every tenant has its part.
func (g *GPU) undecided() bool {
	p := g.prospect()
	return p.most > margin && p.sure <= margin
}

// mendable says whether tenants that lacked some of their part in a trial may have
// it if the others are curbed. Slices mend little, and nothing where turns are better.
func (g *GPU) mendable() bool {
	p, most := g.prospect(), 1.0
	switch config := &g.scheduler.config; {
	case config.Concurrent:
	case config.Slices && g.together:
		most = mends
	default:
		return false
	}
	return p.most > margin && p.most <= most && p.least <= 0 && g.hopeful()
}

// curb returns what t is curbed to at first, and at most: parts of a time slice, or of its pace.
func (g *GPU) curb(t *tenant) (first, least float64) {
	if g.scheduler.config.Concurrent {
		return max(t.part, paceLeast), paceLeast
	}
	return curbFirst, float64(sliceLeast) / float64(sliceMost)
}

// suits says whether all tenants may be open beside others: nobody else would be
// there to hold one back from its limit, or to go before one.
func (g *GPU) suits() bool {
	return !slices.ContainsFunc(g.tenants, func(t *tenant) bool {
		return t.sessions > 0 && (t.share.Class == Idle ||
			t.share.Limit < 1 && t.often()/(1+g.crowd(t)) >= t.share.Limit)
	})
}

// foresee returns the part of its lone pace that t would have if all were open, or
// up to so much more: one launch more or less, and the errors of both paces.
func (g *GPU) foresee(t *tenant) (pace, doubt float64, known bool) {
	p := &t.pace
	rate, known := p.rate()
	wants := t.often() * g.crowd(t)
	launch := wants * rate / max(p.beside.launches, 1)
	return 1 - wants*(1-rate) - launch, launch + wants*rate*math.Hypot(p.noise.beside.off(p.beside), p.noise.solo.off(p.solo)), known
}

// often returns the part of the time in which t wants the GPU, as far as is known.
func (t *tenant) often() float64 {
	if t.state.Mode != Open && t.wants && (t.gpu.now-t.came < silence || t.gpu.now-t.began > linger) {
		return 1
	}
	return t.duty
}

// crowd returns the part of the time in which others want the GPU.
func (g *GPU) crowd(t *tenant) float64 {
	sum := 0.0
	for _, o := range g.tenants {
		if o != t && o.active(g.now) {
			sum += o.often()
		}
	}
	return min(sum, 1)
}

// free begins or ends the time in which all are open.
func (g *GPU) free() {
	f := &g.freedom
	switch {
	case g.scheduler.config.Turns:
	case f.on && g.lacks():
		if g.now-f.since >= freeLong {
			f.gap = 0
		}
		f.vain(g)
		f.lacked = true
	case f.on && (!g.known() || g.newcomer()):
		f.end(g)
		f.since -= f.gap
	case f.on || g.measured != nil || g.trying:
	case f.trial == curbed:
		if f.trial = none; g.content() {
			f.begin(g)
			return
		}
		for _, t := range g.tenants {
			t.pace.beside = t.glimpse.beside
		}
		f.vain(g)
	case f.trial == plain:
		switch f.trial = none; {
		case g.content():
			f.begin(g)
		case g.mendable():
			g.tryCurbs()
		default:
			f.vain(g)
		}
	case f.due(g) && !g.tellsMore():
		f.begin(g)
	}
}

// tellsMore says whether a trial tells more than is known: two contend, and none
// of those who go first keeps them from running.
func (g *GPU) tellsMore() bool {
	return g.contenders() > 1 && !slices.ContainsFunc(g.tenants, (*tenant).goesFirst)
}

// newcomer says whether one of those who contend came while all were open, and a trial tells whether
// each has its part beside it.
func (g *GPU) newcomer() bool {
	return g.tellsMore() && slices.ContainsFunc(g.tenants, func(t *tenant) bool {
		return t.heavy() && !t.light(g.now) && t.came > g.freedom.since
	})
}

// tryCurbs begins a trial in which those who would have their part are curbed.
func (g *GPU) tryCurbs() {
	g.freedom.trial, g.triedAt, g.trying, g.together = curbed, g.now, true, true // or they take turns in it
	for _, t := range g.tenants {
		if pace, _, _ := g.foresee(t); pace >= t.need() {
			t.curb, _ = g.curb(t)
		}
		t.glimpse.beside, t.pace.beside, t.pace.before = t.pace.beside, rate{}, true
	}
}

// due says whether it is time to try whether all may be open.
func (f *freedom) due(g *GPU) bool {
	return !f.on && (g.now-f.since >= f.gap || !f.lacked && !g.tellsMore()) && g.hopeful()
}

// begin lets all be open. Where one hurries, the others are curbed.
func (f *freedom) begin(g *GPU) {
	f.on, f.lacked, f.since, g.uncharged = true, false, g.now, 0
	for _, t := range g.tenants {
		t.glimpse = glimpse{}
	}
	for _, t := range g.tenants {
		if t.goesFirst() {
			g.trim(t, lacking)
		}
	}
}

// end ends the time in which all are open, or a trial of it.
func (f *freedom) end(g *GPU) {
	f.on, f.since = false, g.now
	for _, t := range g.tenants {
		t.curb = 0
	}
}

// vain ends a time or a trial that left somebody without its part. The next attempt
// comes later each time.
func (f *freedom) vain(g *GPU) {
	f.gap = min(max(2*f.gap, freeGap), freeMost)
	f.end(g)
	for _, t := range g.tenants {
		t.lag += max(t.glimpse.lacks, 0) // it is owed that
		t.glimpse.lacks = 0
	}
}

// unsure says whether the lone pace of t, which is open, needs to be measured again. Not so if its
// processes on other GPUs may wait for it meanwhile.
func (t *tenant) unsure() bool {
	for _, g := range t.gpu.scheduler.gpus {
		if o := g.find(t.name); o != nil && o.wants && o.unit != t.unit {
			return false
		}
	}
	pace, off := t.glimpse.pace, t.off()
	return t.doubted() || off > certain && pace > 0 && pace*(1-off) < t.need()
}

// doubted says whether what was measured of the lone pace may be wrong: beside it, t is too slow or
// too fast, or it is old.
func (t *tenant) doubted() bool {
	return t.glimpse.may > lackMost/4 || t.glimpse.pace > 1.15 || t.gpu.now-t.pace.fresh > doubtful
}

// lacks says whether a tenant lacks too much of its part.
func (g *GPU) lacks() bool {
	return slices.ContainsFunc(g.tenants, func(t *tenant) bool { return t.glimpse.lacks >= lackMost })
}

// known says whether all that is open can be judged.
func (g *GPU) known() bool {
	contenders, known := 0, true
	for _, t := range g.tenants {
		if t.contends(g.now) && t.duty > seldom {
			contenders++
			known = known && t.pace.cost() > 0
		}
	}
	return (known || contenders < 2) && g.suits()
}

// frees finds whether all tenants of a domain are open: no gang can be open on
// one of its GPUs only.
func (d *domain) frees() {
	d.open = true
	for _, g := range d.gpus {
		if g.freedom.on && g.measured == nil && !g.trying || g.alone() != nil {
			continue
		}
		for _, t := range g.tenants {
			d.open = d.open && !t.active(g.now)
		}
	}
}

// opens says whether t may launch without a bound.
func (t *tenant) opens() bool {
	return t.unit.alone() || t.gpu.domain.open && t.gpu.freedom.on && !t.share.Held && !t.mute && !t.dry
}

// close bounds the launches of tenants that are open, and must not be any more.
// They count as working until they report otherwise.
func (g *GPU) close() {
	for _, t := range g.tenants {
		if t.state.Mode != Open || t.opens() {
			continue
		}
		sleeps := t.state.Beside // else it does not report what it does
		g.open(t, Run)
		if !t.wants {
			g.want(t, sleeps)
		}
	}
}

// lapse ends the want of t, which is open and did not say when it ended.
func (g *GPU) lapse(t *tenant) {
	burst := t.burst
	g.rest(t, 0)
	t.burst, t.rested, t.duty = burst, t.looked, 0
}

// learnOpen books what an open tenant reports of the time since it did so last. All
// together are charged for no more than the time.
func (g *GPU) learnOpen(t *tenant, launched float64, busy, over time.Duration) {
	var due time.Duration
	served, charged, cost := busy, busy, t.pace.cost()
	if g.freedom.on {
		if s := over.Seconds(); s > 0 {
			t.duty += (busy.Seconds()/s - t.duty) * min(s, 1)
		}
		load := 0.0
		for _, o := range g.tenants {
			if o.state.Mode == Open {
				load += o.duty
			}
		}
		used := time.Duration(float64(busy) / max(load, 1))
		charged = min(used, g.uncharged)
		if g.uncharged -= charged; cost > 0 {
			served = min(time.Duration(launched*cost*float64(time.Second)), over)
		}
		t.pay(max(used-time.Duration(t.share.Limit*float64(over)), 0))
		if busy > 0 && !t.wants {
			g.want(t, false)
		}
		due = time.Duration(t.part * float64(busy))
		g.glimpse(t, launched, busy, over)
		g.learnAlone(t, stretch{launched, busy, over})
	} else if launched > 0 {
		t.pace.settle(g.now, stretch{launched, busy, over})
	}
	t.stats.Charged += charged
	t.stats.Served += served
	t.stats.Wanted += busy
	t.spread(t.looked-over, t.looked, served, due)
}

// learnAlone books what t did while all were open and nobody else worked. That is known with the next report of t: the
// others have told of their work by then.
func (g *GPU) learnAlone(t *tenant, s stretch) {
	p := &t.pace
	before := p.latest
	p.latest = stretch{}
	if slices.ContainsFunc(g.tenants, func(o *tenant) bool {
		return o != t && o.sessions > 0 && (o.wants || o.drains || o.rested > t.looked-s.over-before.over)
	}) {
		return
	}
	if before.launched > 0 {
		p.settle(g.now, before)
	}
	p.latest = s
}

// off returns the relative error of the lone pace of t.
func (t *tenant) off() float64 { return t.pace.noise.solo.off(t.pace.solo) }

// glance returns the time that tells a pace.
func (t *tenant) glance() time.Duration {
	return min(max(t.pace.noise.solo.enough(vague), glanceLeast), glance)
}

// watched says whether all that is open reports more often than once a second: it began a moment
// ago, somebody lacks some of its part, or is curbed or was a moment ago.
func (g *GPU) watched() bool {
	f := &g.freedom
	lately := g.now-max(f.since, f.curbed) < watch
	return f.on && g.tellsMore() && (lately || slices.ContainsFunc(g.tenants, func(t *tenant) bool {
		return t.curb != 0 || t.glimpse.may > lackMost/4
	}))
}

// glimpse sums up what an open tenant lacks of its part: of the time in which it
// did not rest, and of what it did in that time.
func (g *GPU) glimpse(t *tenant, launched float64, busy, over time.Duration) {
	s := &t.glimpse
	s.launched += launched
	s.busy += busy
	if s.over += over; s.over < t.glance() {
		return
	}
	pace := 0.0
	if cost := t.pace.cost(); cost > 0 {
		did := s.launched * cost * float64(time.Second)
		had := time.Duration(did) + s.over - s.busy
		s.lacks = max(s.lacks+s.due-had-time.Duration(did*t.off()), -surplus)
		s.may = max(s.may+s.due-had, -surplus)
		ahead := had - time.Duration(g.aim()*float64(s.due))
		s.short = min(max(s.short-ahead, -surplus), lackMost)
		pace = float64(had) / float64(s.over)
		switch over := float64(s.over); {
		case had < s.due && s.may > lackMost/4:
			g.trim(t, lacking)
		case ahead < 0 && s.short > lackMost/4:
			g.trim(t, short)
		default:
			g.grow(t, float64(had-s.due)/over, float64(ahead)/over)
		}
	}
	*s = glimpse{lacks: s.lacks, may: min(s.may, lackMost), short: s.short, pace: pace}
}

// lacking and short return what t lacks of its part, and of what the curbs of others aim at.
func lacking(t *tenant) time.Duration { return t.glimpse.may }
func short(t *tenant) time.Duration   { return t.glimpse.short }

// trim curbs those who lack nothing, for t. If t is paced at less than its part, that is eased first.
func (g *GPU) trim(t *tenant, lacks func(*tenant) time.Duration) {
	if !g.scheduler.config.Slices && !g.scheduler.config.Concurrent {
		return
	}
	if own, _ := g.curb(t); g.scheduler.config.Concurrent && t.curb != 0 && t.curb < own {
		t.curb = min(t.curb*5/4, own)
		return
	}
	for _, o := range g.tenants {
		switch first, least := g.curb(o); {
		case o == t || lacks(o) > 0:
		case o.curb == 0:
			o.curb, g.freedom.curbed = first, g.now
		default:
			o.curb, g.freedom.curbed = max(o.curb*4/5, least), g.now
		}
	}
}

// grow eases the curbs of others, because t has so much more than its part, and ahead of what they aim
// at, unless somebody needs them. The first is enough for one who lacks some of its own part.
func (g *GPU) grow(t *tenant, more, ahead float64) {
	for _, o := range g.tenants {
		has, lacks := ahead, short
		if lacking(o) > 0 {
			has, lacks = more, lacking
		}
		if o == t || has <= eases || slices.ContainsFunc(g.tenants, func(x *tenant) bool {
			return x != o && (lacks(x) > 0 || x.hurried() && x.active(g.now))
		}) {
			continue
		}
		if o.curb = o.curb * 5 / 4; o.curb >= 1 {
			o.curb = 0
		}
	}
}
