package jobs

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gpusteward/enforcer/steps"
	"gpusteward/internal/wire"
)

// A step is slow if it takes so much longer than usual. A process is slow if that
// is true, by less, for most of its last spans: some steps take longer now and
// then. The slowest of these spans may contain a checkpoint, so it does not count
// for the cause.
//
// An evaluation or a checkpoint does not change the usual step. A process that is
// slow from its first step on has that as its usual step, and a step that stays
// slow for six hours becomes the usual one. Slow steps without a known cause that
// pass by themselves are normal for the program on this host: similar ones soon
// count as usual.

// A shape is a step in numbers: seconds, and counts. That of several is their mean.
type shape [shapes]float64

const (
	wall = iota
	held
	copying
	waiting
	away
	launching
	collecting
	allocating
	busy
	launches
	copied
	allocs
	shapes
)

func shapeOf(s *steps.Step) shape {
	return shape{wall: s.Wall().Seconds(), held: s.Held.Duration().Seconds(), copying: s.Copying.Duration().Seconds(),
		waiting: s.Waiting.Duration().Seconds(), away: s.Host.Duration().Seconds(),
		launching: s.Launching().Seconds(), collecting: s.Collecting.Duration().Seconds(),
		busy: s.Busy.Duration().Seconds(), launches: float64(s.Launches + s.Graphs), copied: float64(s.Copied) * 64,
		allocs: float64(s.Allocs), allocating: s.Allocating.Duration().Seconds()}
}

// A mean is that of some steps, and of what was known meanwhile.
type mean struct {
	shape
	around surroundings
	steps  float64
	looks  float64
}

// add adds o, with its weights.
func (m *mean) add(o *mean) {
	if m.steps += o.steps; o.steps > 0 {
		for i := range m.shape {
			m.shape[i] += o.steps / m.steps * (o.shape[i] - m.shape[i])
		}
	}
	if m.looks += o.looks; o.looks > 0 {
		for i := range m.around {
			m.around[i] += o.looks / m.looks * (o.around[i] - m.around[i])
		}
	}
}

// A span is some seconds of a process.
type span struct {
	all, slow mean // steps, and the slow ones among them
	began     int64
	isSlow    bool
}

// usual is the typical step of a process: the mean of spans that were not slow.
type usual struct {
	mean
	pattern uint8
	spans   float64
	seen    float64 // spans whose surroundings are known
	spread  float64 // variance of the spans' means, relative
	last    []span  // the last one last
}

// known reports whether enough is known to judge by.
func (u *usual) known() bool { return u.spans >= usualFrom && u.steps >= usualSteps }

// slow reports whether a mean step is slow.
func (u *usual) slow(m *mean) bool {
	return u.known() && m.shape[wall] > u.shape[wall]*(1+max(slowSpan, slowSpread*math.Sqrt(u.spread)))
}

// alike reports whether steps of another pattern are the same steps: an
// evaluation makes a pattern end, and another begin.
func (u *usual) alike(m *mean) bool {
	mine := u.shape
	if u.spans == 0 && len(u.last) > 0 {
		mine = u.last[0].all.shape
	}
	return math.Abs(mine[launches]-m.shape[launches]) <= 0.1*mine[launches]+0.5 &&
		math.Abs(mine[copied]-m.shape[copied]) <= 0.1*mine[copied]+4096
}

// differ lets a span count that differed so much.
func (u *usual) differ(off float64) { u.spread += (off*off - u.spread) / min(u.spans, spreadMost) }

// learn lets a span count as usual.
func (u *usual) learn(m *mean) {
	if u.known() {
		off := m.shape[wall]/u.shape[wall] - 1
		u.differ(off)
	}
	u.spans = min(u.spans+1, usualMost)
	for i := range m.shape {
		u.shape[i] += (m.shape[i] - u.shape[i]) / u.spans
	}
	if m.looks > 0 {
		u.seen = min(u.seen+1, usualMost)
		for i := range m.around {
			u.around[i] += (m.around[i] - u.around[i]) / u.seen
		}
	}
	u.steps += m.steps
}

// A pace is how fast a process steps, now and usually.
type pace struct {
	usual  usual
	others [3]usual // those of earlier patterns
	span   span
	now    *wire.Slowdown
	likely string // cause, at the last judgement that found the process slow
	began  int64  // when it became slow
	ended  int64  // when a step last ended
	judged int64  // when a span last ended
}

// pauses reports whether the process does something else than steps now. Its
// surroundings then explain no step.
func (p *pace) pauses(at int64) bool {
	return at-p.ended > int64(time.Second)+int64(2e9*p.usual.shape[wall])
}

// step takes a finished step. Once a span has ended, it returns the number of slow
// steps and their cause.
func (p *pace) step(s *steps.Step, measured float64) (cause string, slow int) {
	if s.Interrupted() {
		return "", 0 // it did something else meanwhile
	}
	if s.Pattern != p.usual.pattern {
		p.turn(s)
	}
	p.ended = s.End
	one := mean{shape: shapeOf(s), steps: 1}
	one.shape[collecting] *= measured
	if p.span.all.steps == 0 {
		p.span.began = s.Begin
	}
	p.span.all.add(&one)
	if usual := p.usual.shape[wall]; p.usual.known() && one.shape[wall] > max(slowFactor*usual, usual+slowLeast) {
		p.span.slow.add(&one)
	}
	if s.End-p.span.began < int64(spanLength) {
		return "", 0
	}
	return p.end(s.End)
}

// turn begins another pattern, whose steps may be known.
func (p *pace) turn(s *steps.Step) {
	copy(p.others[1:], p.others[:])
	p.others[0] = p.usual
	one := mean{shape: shapeOf(s)}
	p.usual = usual{}
	if i := slices.IndexFunc(p.others[:], func(o usual) bool { return o.alike(&one) }); i >= 0 {
		p.usual, p.others[i] = p.others[i], usual{}
	} else {
		p.now = nil // it does something else
	}
	p.span = span{}
	p.usual.pattern = s.Pattern
}

// end judges a span. The span counts as usual only when it is no longer among the
// last ones and at most one of these was slow, so that a slowdown that builds up does
// not become usual.
func (p *pace) end(at int64) (cause string, slow int) {
	n := p.span
	p.span, p.judged = span{}, at
	if n.slow.steps > 0 {
		n.slow.around, n.slow.looks = n.all.around, n.all.looks
		cause, slow = causeOf(&p.usual.mean, &n.slow), int(n.slow.steps)
	}
	n.isSlow = p.usual.slow(&n.all)
	p.usual.keep(n, p.now == nil)
	p.judge(at)
	return cause, slow
}

// keep keeps a span as the last one.
func (u *usual) keep(n span, healthy bool) {
	u.last = append(u.last, n)
	switch {
	case !u.known() && len(u.last) == spansFirst:
		u.begin()
	case u.known() && len(u.last) > spansKept:
		slow := 0
		for i := range u.last {
			slow += truth(u.last[i].isSlow)
		}
		if first := &u.last[0]; healthy && !first.isSlow && slow <= 1 {
			u.learn(&first.all)
		}
		u.last = append(u.last[:0], u.last[1:]...)
	}
}

// begin learns from the first spans without those that have a checkpoint.
func (u *usual) begin() {
	walls := make([]float64, len(u.last))
	for i := range u.last {
		walls[i] = u.last[i].all.shape[wall]
	}
	most, kept := unusual*median(walls), len(u.last)-spansKept
	for i := range u.last[:kept] {
		if m := &u.last[i].all; m.shape[wall] <= most {
			u.learn(m)
		}
	}
	u.last = append(u.last[:0], u.last[kept:]...)
	for i := range u.last {
		u.last[i].isSlow = u.slow(&u.last[i].all)
	}
}

// judge decides whether the process is slow now. The slowest of the last spans does
// not count, because it may contain a checkpoint. The fastest of the slow ones does not
// count for the cause, because the first one was not slow from its beginning.
func (p *pace) judge(at int64) {
	if !p.usual.known() {
		return
	}
	var all mean
	spans, usual := p.usual.byTime(), p.usual.shape[wall]
	faster := len(spans) == spansKept && spans[spansKept-1].all.shape[wall] < usual*(1-slowSpan/2)
	for _, n := range spans[:len(spans)-1] {
		all.add(&n.all)
	}
	spans = slices.DeleteFunc(spans, func(n *span) bool { return !n.isSlow })
	begins := len(spans) >= spansKept-1
	remains := p.now != nil && len(spans) > 1 && all.shape[wall] > usual*(1+slowSpan/2)
	switch {
	case p.now != nil && at-p.began > int64(forgetSlow):
		p.relearn(all)
	case begins || remains:
		var slow mean
		first := (len(spans) - 1) / 2
		for _, n := range spans[first:max(first+1, len(spans)-1)] {
			slow.add(&n.all)
		}
		p.tell(&slow, at)
	default:
		p.passed(at)
		if p.now = nil; faster { // it was slow before, all the time
			p.relearn(all)
		}
	}
}

// passed ends a report. Slow steps without a cause that pass by themselves are normal for
// the program on this host: others may use the other half of a core.
func (p *pace) passed(at int64) {
	if p.now == nil || p.now.Cause != "unknown" {
		return
	}
	off := p.now.Seconds/p.now.Usual - 1
	for range min(passes, spansKept+(at-p.began)/int64(spanLength)) {
		p.usual.differ(off)
	}
}

// tell reports why steps are slow, once two judgements agree.
func (p *pace) tell(slow *mean, at int64) {
	if p.usual.seen > 0 && slow.looks == 0 {
		return // their surroundings are not known
	}
	s := p.usual.told(slow, p.now)
	agreed := s.Cause == p.likely
	p.likely = s.Cause
	if !agreed {
		return
	}
	if p.now == nil {
		p.began = at
	}
	if p.now = s; s.Cause == "work" {
		p.relearn(*slow)
	}
}

// byTime returns the last spans, those with the longest steps last.
func (u *usual) byTime() []*span {
	all := make([]*span, len(u.last))
	for i := range u.last {
		all[i] = &u.last[i]
	}
	slices.SortStableFunc(all, func(a, b *span) int { return cmp.Compare(a.all.shape[wall], b.all.shape[wall]) })
	return all
}

// relearn makes a mean the usual one: the program does other steps from now on.
func (p *pace) relearn(m mean) {
	p.usual = usual{mean: m, pattern: p.usual.pattern, spans: usualFrom, seen: min(m.looks, usualFrom)}
	p.now = nil
}

// told returns the report about slow steps. The evidence of a cause is that of the
// moment at which the cause was first reported.
func (u *usual) told(slow *mean, before *wire.Slowdown) *wire.Slowdown {
	s := &wire.Slowdown{Seconds: slow.shape[wall], Usual: u.shape[wall], Cause: causeOf(&u.mean, slow)}
	if s.Evidence = evidenceOf(s.Cause, &u.mean, slow); before != nil && before.Cause == s.Cause {
		s.Evidence = before.Evidence
	}
	return s
}

// slowdown returns the present report; nil if the process no longer steps.
func (p *pace) slowdown(at int64) *wire.Slowdown {
	if p.now == nil || at-p.judged > int64(30*time.Second)+int64(4e9*p.now.Seconds) {
		return nil
	}
	s := *p.now
	return &s
}
