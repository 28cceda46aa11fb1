package schedule

import (
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
// while that leaves everybody its part.

const (
	bearable = 0.85                   // of its lone pace is enough for a tenant that hurries
	noise    = 0.02                   // less than its part may be what a short trial missed
	lacking  = 100 * time.Millisecond // that a tenant lacks closes the gate:
	surplus  = 50 * time.Millisecond  // as much can be made up for in advance
	glance   = 900 * time.Millisecond // tells a pace
	quiet    = 2 * time.Second        // without a report: it has no work
	freeGap  = 2 * time.Second        // until all are open again; twice as long after each time in vain,
	freeMost = 2 * time.Minute        // up to this
	freeLong = 30 * time.Second       // was not in vain
	doubtful = time.Minute            // is a lone pace that is as old

	sliceMost  = 2 * time.Millisecond   // about the driver's default
	sliceFirst = 800 * time.Microsecond // in a trial
	sliceLeast = 200 * time.Microsecond // a switch takes more than half as long
	mends      = 0.25                   // of its lone pace may be what a tenant gains by that
	eases      = 0.02                   // more than its part, and the slices grow
)

// A freedom is the time in which all tenants of a GPU are open.
type freedom struct {
	on    bool
	since time.Duration // when it began or ended
	gap   time.Duration // until it may begin again

	slicing bool          // it is tried with shorter slices
	vain    time.Duration // until that is tried again
}

// A glimpse is what an open tenant did beside others.
type glimpse struct {
	launched   float64
	busy, over time.Duration
	due        time.Duration // its part of that time
	lacks      time.Duration // of its part, summed up; below 0 it had more
	pace       float64       // lately, as a part of its lone pace
	beside     rate          // before a trial with shorter slices
}

// need returns the part of its lone pace that t must have: what hurries is to be
// nearly as fast as alone.
func (t *tenant) need() float64 {
	if t.hurried() {
		return max(t.part, bearable)
	}
	return t.part
}

// content says whether every tenant has its part without being held back, as far
// as is known. Slices may have to help.
func (g *GPU) content() bool {
	active, contenders, has := 0, 0, true
	for _, t := range g.tenants {
		if t.sessions > 0 && !g.suits(t) {
			return false
		}
		if !t.active(g.now) {
			continue
		}
		if active++; t.light(g.now) {
			continue
		}
		contenders++
		pace, known := g.foresee(t)
		has = has && known && pace >= t.need()-noise
	}
	return active > 1 && (has || contenders < 2)
}

// suits says whether t may be open beside others: nobody else would be there to
// hold it back from its limit, or to go before it.
func (g *GPU) suits(t *tenant) bool {
	return t.share.Class > Idle && (t.share.Limit == 1 || t.often()/(1+g.crowd(t)) < t.share.Limit)
}

// foresee returns the part of its lone pace that t would have if all were open.
// Who hurries lets nobody run beside it, so that is not known before it is tried.
func (g *GPU) foresee(t *tenant) (pace float64, known bool) {
	if slices.ContainsFunc(g.tenants, func(o *tenant) bool { return o.active(g.now) && o.hurried() }) {
		return 1, t.pace.cost() > 0
	}
	rate, known := t.pace.rate()
	return 1 - t.often()*g.crowd(t)*(1-rate), known
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
		f.gap = min(max(2*f.gap, freeGap), freeMost)
		f.on, f.since = false, g.now
	case f.on && !g.known():
		f.on, f.since = false, g.now-f.gap
	case f.on || g.measured != nil || g.trying:
	case f.slicing:
		if f.slicing = false; g.content() {
			f.begin(g)
			return
		}
		f.vain = min(max(2*f.vain, freeGap), freeMost)
		for _, t := range g.tenants {
			t.slice, t.pace.beside = 0, t.glimpse.beside
		}
	case g.now-f.since >= f.gap && g.content():
		for _, t := range g.tenants {
			t.slice = 0
		}
		f.begin(g)
	case g.scheduler.config.Slices && g.now-g.triedAt >= f.vain && g.mendable():
		f.slicing, g.triedAt, g.trying = true, g.now, true
		for _, t := range g.tenants {
			if pace, _ := g.foresee(t); pace >= t.need() {
				t.slice = sliceFirst
			}
			t.glimpse.beside = t.pace.beside
			t.pace.beside = rate{}
		}
	}
}

func (f *freedom) begin(g *GPU) {
	f.on, f.since = true, g.now
	for _, t := range g.tenants {
		t.glimpse = glimpse{}
	}
	for _, t := range g.tenants {
		if t.hurried() && t.active(g.now) {
			g.trim(t)
		}
	}
}

// unsure says whether the lone pace of t, which is open, needs to be measured
// again: beside what it was, t is too slow or too fast. Not so if its processes
// on other GPUs may wait for it meanwhile.
func (t *tenant) unsure() bool {
	for _, g := range t.gpu.scheduler.gpus {
		if o := g.find(t.name); o != nil && o.wants && o.unit != t.unit {
			return false
		}
	}
	return t.glimpse.lacks > lacking/4 || t.glimpse.pace > 1.15 || t.gpu.now-t.pace.fresh > doubtful
}

// mendable says whether tenants that would lack some of their part if all were
// open may have it if the others' slices are shorter.
func (g *GPU) mendable() bool {
	ahead, behind := 0, 0
	for _, t := range g.tenants {
		if t.sessions > 0 && !g.suits(t) {
			return false
		}
		if !t.active(g.now) || t.light(g.now) {
			continue
		}
		switch pace, known := g.foresee(t); {
		case !known || pace < t.need()-mends:
			return false
		case pace < t.need()-noise:
			behind++
		case pace >= t.need():
			ahead++
		}
	}
	return behind > 0 && ahead > 0
}

// lacks says whether a tenant lacks too much of its part.
func (g *GPU) lacks() bool {
	for _, t := range g.tenants {
		if t.sessions > 0 && t.glimpse.lacks >= lacking {
			return true
		}
	}
	return false
}

// known says whether all that is open can be judged.
func (g *GPU) known() bool {
	contenders, known := 0, true
	for _, t := range g.tenants {
		if t.sessions > 0 && !g.suits(t) {
			return false
		}
		if t.contends(g.now) && t.duty > seldom {
			contenders++
			known = known && t.pace.cost() > 0
		}
	}
	return known || contenders < 2
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
	return t.unit.alone() || t.gpu.domain.open && !t.share.Held && !t.mute && t.gpu.freedom.on
}

// close bounds the launches of tenants that are open, and must not be any more.
// They count as working until they report otherwise.
func (g *GPU) close() {
	for _, t := range g.tenants {
		if t.state.Mode != Open || t.opens() {
			continue
		}
		g.open(t, Run)
		if !t.wants {
			g.want(t)
		}
	}
}

// learnOpen books what an open tenant reports of the time since it did so last.
func (g *GPU) learnOpen(t *tenant, launched float64, busy, over time.Duration) {
	served, charged, cost := busy, busy, t.pace.cost()
	if g.freedom.on {
		t.duty = busy.Seconds() / max(over.Seconds(), 1e-9)
		load := 0.0
		for _, o := range g.tenants {
			if o.state.Mode == Open {
				load += o.duty
			}
		}
		if charged = time.Duration(float64(busy) / max(load, 1)); cost > 0 {
			served = min(time.Duration(launched*cost*1e9), over)
		}
		if t.share.Limit < 1 {
			t.bucket -= max(charged-time.Duration(t.share.Limit*float64(over)), 0)
		}
		if busy > 0 && !t.wants {
			g.want(t)
		}
		t.past.slot(g.now).due += time.Duration(t.part * float64(busy))
		g.glimpse(t, launched, busy, over)
	}
	t.bill.charged += charged
	t.bill.served += served
	t.stats.Wanted += busy
	t.settle(0)
}

// glimpse sums up what an open tenant lacks of its part: of the time in which it
// did not rest, and of what it did in that time.
func (g *GPU) glimpse(t *tenant, launched float64, busy, over time.Duration) {
	s := &t.glimpse
	s.launched += launched
	s.busy += busy
	if s.over += over; s.over < glance {
		return
	}
	pace := 0.0
	if cost := t.pace.cost(); cost > 0 {
		had := time.Duration(s.launched*cost*1e9) + s.over - s.busy
		s.lacks = max(s.lacks+s.due-had, -surplus)
		pace = float64(had) / float64(s.over)
		switch more := float64(had-s.due) / float64(s.over); {
		case more < 0 && s.lacks > lacking/4:
			g.trim(t)
		case more > eases && !t.hurried():
			g.grow(t)
		}
	}
	*s = glimpse{lacks: s.lacks, pace: pace}
}

// trim shortens the slices of those who lack nothing, for t.
func (g *GPU) trim(t *tenant) {
	if !g.scheduler.config.Slices {
		return
	}
	for _, o := range g.tenants {
		switch {
		case o == t || o.glimpse.lacks > 0:
		case o.slice == 0:
			o.slice = sliceMost / 2
		default:
			o.slice = max(o.slice*2/3, sliceLeast)
		}
	}
}

// grow lengthens the slices of the others, because t has more than its part.
func (g *GPU) grow(t *tenant) {
	for _, o := range g.tenants {
		if o == t || o.slice == 0 || g.lacking(o) {
			continue
		}
		if o.slice = o.slice * 5 / 4; o.slice >= sliceMost {
			o.slice = 0
		}
	}
}

// lacking says whether a tenant other than o lacks something of its part.
func (g *GPU) lacking(o *tenant) bool {
	return slices.ContainsFunc(g.tenants, func(t *tenant) bool { return t != o && t.sessions > 0 && t.glimpse.lacks > 0 })
}
