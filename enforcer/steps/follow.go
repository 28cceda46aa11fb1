package steps

// A ban excludes rhythms of a size, because one of that size was no step.
type ban struct {
	size  uint32
	least uint32 // good segments in a row that lift the ban
}

const (
	settled   = 512  // after so many steps the search for a longer one ends; also tokens of a request
	timely    = 256  // after so many steps their durations no longer matter
	request   = 100  // tokens of a short request: two further requests of other lengths show that it is one
	young     = 40   // an interruption before so many steps shows that they are a loop in something longer
	trusted   = 16   // steps after which a rhythm may return from an interruption
	interim   = 512  // batches that an evaluation may have
	forgotten = 1024 // another rhythm may replace a trusted one that was silent for so many steps
	answer    = 4096 // tokens of the longest answer
	certain   = 8    // good segments of a step
	doubtful  = 12   // good segments if only one thread launches
)

// propose tries a sign as the mark of a step.
func (f *Finder) propose(s *sign, order uint8) {
	calls := s.hash
	if order == orders-1 {
		calls -= f.handed
	}
	alone := rhythm{hash: s.hash, calls: calls, order: order, size: s.span, turns: uint32(s.turns), pause: s.pause,
		strikes: 1, open: true, begin: f.all, since: f.all.size}
	var place, weakest *rhythm
	akin := 0
	for i := range f.rhythms {
		r := &f.rhythms[i]
		switch silent := f.all.size - r.begin.size; {
		case r.hash == s.hash && r.order == order && r.strikes > 0:
			return
		case r == f.followed || r.proven && silent < forgotten*r.size:
		case r.strikes == 0, silent > 4*r.size, r.good == 0 && r.strikes > 2*certain:
			place = r
		case r.akin(&alone):
			if akin++; weakest == nil || r.score() < weakest.score() {
				weakest = r
			}
		}
	}
	if akin >= 3 {
		if place = weakest; alone.score() < weakest.score()+0.5 {
			return
		}
	}
	if place != nil {
		*place = alone
		f.watch()
	}
}

// watch notes the signs of all rhythms.
func (f *Finder) watch() {
	f.watched, f.depth = [orders]uint64{}, 1
	for i := range f.rhythms {
		r := &f.rhythms[i]
		if f.marks[i] = 0; r.strikes > 0 {
			f.marks[i] = r.hash
			f.watched[r.order] |= 1 << (r.hash >> 26)
			f.depth = max(f.depth, int(r.order)+1)
		}
	}
	if f.searching {
		f.depth = orders
	}
}

// strike lets the rhythms with this sign strike.
func (f *Finder) strike(hash uint32, order uint8, thread uint16) {
	for i := range f.marks {
		r := &f.rhythms[i]
		if f.marks[i] != hash || r.order != order || r.proven && f.all.size-r.begin.size < r.size/8 {
			continue // a log line looks like a second beginning
		}
		f.stop()
		f.judge(r, r.strike(&f.here, f.pause(thread)))
		r.begin = f.here
	}
}

// judge acts on a segment of a rhythm, which r.begin begins.
func (f *Finder) judge(r *rhythm, v verdict) {
	e := f.followed
	switch {
	case v == first && r == e:
		f.skip()
	case v == first:
	case r == e:
		f.follow(v)
	case v != same:
		r.interrupt()
	case e != nil && e.open && alike(r.size, e.size) && e.alive(f.all.size) && e.begin.before(&r.begin):
		f.mend(r)
	case e != nil && r.proven && r.good >= 2 && !e.alive(f.all.size) && !r.evaluates(e):
		f.resume(r)
	case e == nil || !e.alive(f.all.size) && !e.in(r) || r.holds(e):
		f.consider(r)
	}
}

// follow ends a step of the rhythm that is followed.
func (f *Finder) follow(v verdict) {
	r := f.followed
	if r.refuted(v, f.all.size) {
		f.drop()
		return
	}
	if v != same {
		r.interrupt()
	}
	if v == other {
		f.skip()
		return
	}
	what := flags(0)
	if v == longer {
		what = interrupted
	}
	f.end(what)
}

// drop ends what looked like steps and was not.
func (f *Finder) drop() {
	f.withdraw()
	f.ban(f.followed)
	f.followed, f.searching, f.ending = nil, true, false
	f.watch()
}

// ban forgets a rhythm. Another one of its size is followed only if it lasts far longer.
func (f *Finder) ban(r *rhythm) {
	b := &f.bans[f.banned%uint8(len(f.bans))]
	for i := range f.bans {
		if alike(f.bans[i].size, r.size) {
			b = &f.bans[i]
		}
	}
	if !alike(b.size, r.size) {
		*b = ban{size: r.size}
		f.banned++
	}
	b.least = max(b.least, 4*max(r.length, r.lengths[0], r.lengths[1]))
	*r = rhythm{}
}

// settle forgets the rhythms that are pieces of the steps, and all twins but one.
func (f *Finder) settle() {
	e := f.followed
	var twin *rhythm
	for i := range f.rhythms {
		r := &f.rhythms[i]
		if r.akin(e) && r.begin.at != e.begin.at && (twin == nil || r.order < twin.order) {
			twin = r
		}
	}
	for i := range f.rhythms {
		if r := &f.rhythms[i]; r != e && r != twin && !r.proven {
			*r = rhythm{}
		}
	}
	f.searching = false
	f.watch()
}

// mend ends a step whose end the followed rhythm missed, because something unusual
// came before its sign. A twin, which strikes elsewhere in the step, tells how long
// a step is.
func (f *Finder) mend(twin *rhythm) {
	r := f.followed
	d := f.all.less(&twin.begin)
	r.begin = r.begin.plus(&d)
	r.at = f.all.size
	f.close()
	if f.open.before(&twin.begin) {
		f.ending, f.ends, f.what = true, f.open.plus(&d), 0
		f.close()
	}
}

// needs returns the number of good segments in a row that make a rhythm one of
// steps.
func (f *Finder) needs(r *rhythm) uint32 {
	n := uint32(doubtful)
	if r.switched() {
		n = certain
	}
	switch e := f.followed; {
	case e == nil:
	case r.holds(e): // its pieces are good
		n /= 2
	case r.evaluates(e):
		n = interim
	}
	if r.tight() { // something is tuned, or filled
		n = settled
	}
	if r.decodes() {
		n = max(n, answer)
	}
	for _, b := range f.bans {
		if alike(r.size, b.size) {
			n = max(n, b.least)
		}
	}
	return n
}

// consider follows a rhythm if it is certain enough. The rhythm replaces one that has
// ended or that is only a piece of it.
func (f *Finder) consider(r *rhythm) {
	if r.good < f.needs(r) || r.size < 2 || !r.steady() || f.several(r) {
		if r.decodes() && r.good >= doubtful {
			f.decode(r)
		}
		return
	}
	switch e := f.followed; {
	case e == nil:
	case e.alive(f.all.size) || e.steps < young:
		f.drop()
	default:
		e.steps, e.good = 0, 0
	}
	best, open := f.best(r), f.here
	if best != r {
		open = best.begin
	}
	f.begin(best, open)
}

// decoding reports whether the tokens that were seen continue.
func (f *Finder) decoding() bool {
	return f.decoded != nil && f.decoded.good >= doubtful && f.decoded.alive(f.all.size)
}

// decode counts what may be tokens, of one rhythm at a time.
func (f *Finder) decode(r *rhythm) {
	if !f.decoding() {
		f.decoded = r
	}
	if f.decoded == r {
		f.tokens++
	}
}

// best returns the rhythm of the same steps with the best mark. If the same calls mark
// several places, the place that recurred last is the best: other calls came before the
// first step than before the next ones, so the loop begins there.
func (f *Finder) best(r *rhythm) *rhythm {
	for i := range f.rhythms {
		o := &f.rhythms[i]
		if !o.akin(r) || !o.open || o.good+2 < min(r.good, young) || !o.alive(f.all.size) {
			continue
		}
		if o.calls == r.calls && int32(o.since-r.since) > 0 || o.calls != r.calls && o.score() > r.score() {
			r = o
		}
	}
	return r
}

// turn goes on with a better mark of the same steps, if it is known by now.
func (f *Finder) turn() {
	r := f.followed
	o := f.best(r)
	if o.begin.at == r.begin.at || o.score() < r.score()+0.5 {
		return
	}
	o.steps, o.length, o.lengths, o.proven = r.steps, r.length, r.lengths, r.proven
	o.open = false
	r.steps, r.proven = 0, false
	f.followed = o
}

// several reports whether a segment of a rhythm holds several steps: a shorter rhythm
// in it went on for longer, without a difference.
func (f *Finder) several(r *rhythm) bool {
	for i := range f.rhythms {
		o := &f.rhythms[i]
		if o.alive(f.all.size) && !r.akin(o) && 2*o.size <= r.size+r.size/8 && o.good*o.size > 2*r.size && !r.holds(o) {
			return true
		}
	}
	return false
}

// begin follows a rhythm, whose first step has begun.
func (f *Finder) begin(r *rhythm, open meter) {
	f.followed = r
	f.pattern++
	f.since, f.open = open.at, open
	r.steps = 0
}

// resume returns to a rhythm after an interruption that looked like another rhythm,
// presumably an evaluation.
func (f *Finder) resume(r *rhythm) {
	e := f.followed
	brief := e.steps < settled
	if brief {
		f.withdraw()
	}
	e.steps = 0
	if brief || e.evaluates(r) {
		f.ban(e)
	}
	f.begin(r, f.here)
}
