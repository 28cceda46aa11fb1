package steps

import (
	"slices"

	"gpusteward/internal/wire"
)

const recent = 16 // segments of which the times are kept

// A rhythm is a sign that recurs, with what it has between two strikes.
type rhythm struct {
	hash    uint32
	calls   uint32 // the part of it that is of its own thread
	order   uint8  // of the sign: index in orders
	open    bool   // there was a strike since the last loss of events
	proven  bool   // it was followed for long
	strikes uint32
	since   uint32  // size of all content when it was known to recur
	pause   float32 // mean pause before the strike, as a logarithm
	begin   meter   // at the last strike

	typical  content            // of the last good segment
	size     uint32             // a mean if it varies
	turns    uint32             // changes of the thread that launches
	waits    [2]uint32          // in the last two good segments
	graphs   bool               // are launched
	answers  float32            // share of segments that answer the host
	differed [recent]uint32     // weights of what differs from one segment to the next, a ring
	compared uint32             // segments
	good     uint32             // segments in a row that are like the one before
	at       uint32             // size of all content at the last good one
	length   uint32             // good segments since the last interruption
	lengths  [2]uint32          // before the last interruptions
	times    [2][recent]float32 // of good segments, and of the work of the process in them, rings, ns
	timed    uint32
	unsteady bool   // at the last check
	steps    uint32 // while it is followed
}

// A verdict tells what a segment is.
type verdict uint8

const (
	first  verdict = iota // nothing: its begin is unknown
	same                  // it is like the last good one
	longer                // it contains such a one, and more
	other
)

// strike ends a segment.
func (r *rhythm) strike(now *meter, pause float32) verdict {
	r.strikes++
	r.pause = lower(r.pause, pause)
	if !r.open {
		r.open = true
		return first
	}
	size := now.size - r.begin.size
	if r.typical == (content{}) {
		r.learn(now, size)
		return other
	}
	differs, common := now.changed(&r.begin, &r.typical)
	again := r.again(size, now.switches-r.begin.switches, differs, common)
	r.differed[r.compared%recent] = differs
	r.compared++
	switch {
	case again:
		r.take(now, size)
		return same
	case r.proven || r.steps > 0:
		r.good = 0
		if size > r.size && common >= r.size-r.size/8 {
			return longer
		}
		return other
	}
	r.good /= 4
	r.learn(now, size)
	return other
}

// again reports whether a segment is like the last good one. If the threads take as
// many turns as before, a training calls other kernels or has data of another size.
func (r *rhythm) again(size, turns, differs, common uint32) bool {
	limit := (size + r.size) / 2
	if size < 32 || !r.switched() { // only a training on data of varying sizes changes much
		limit /= 4
	}
	takesTurns := r.switched() && turns == r.turns
	if alike(size, r.size) {
		return takesTurns || differs <= limit
	}
	// The same work, a different number of times, but no more different than usual.
	last := 2*common + differs - size
	return takesTurns && common >= min(size, last)/4*3 && differs <= 8*r.usually()
}

// take makes the segment the typical one.
func (r *rhythm) take(now *meter, size uint32) {
	r.good++
	r.length++
	r.times[0][r.timed%recent] = float32(now.at - r.begin.at)
	r.times[1][r.timed%recent] = now.working(&r.begin)
	r.timed++
	if !alike(size, r.size) {
		size = r.size + uint32(int32(size-r.size)/8) // a mean
	}
	r.learn(now, size)
	r.at = now.size
}

// interrupt ends a run of good segments.
func (r *rhythm) interrupt() {
	if r.steps > 0 && r.length > 0 {
		r.lengths = [...]uint32{r.length, r.lengths[0]}
	}
	r.length = 0
}

func (r *rhythm) learn(now *meter, size uint32) {
	r.size = size
	r.turns = now.switches - r.begin.switches
	r.waits = [...]uint32{now.waits - r.begin.waits, r.waits[0]}
	r.graphs = now.count[wire.EventGraph] > r.begin.count[wire.EventGraph]
	answers := float32(0)
	if reads := now.reads - r.begin.reads; reads > 2 || reads > 0 && now.given-r.begin.given <= little {
		answers = 1
	}
	r.answers += (answers - r.answers) / float32(min(r.strikes, 2*recent))
	for i := range r.typical {
		r.typical[i] = now.content[i] - r.begin.content[i]
	}
}

// switched reports whether the work goes to another thread and back, as for gradients.
// A thread that launches little in a turn only helps, and does not count.
func (r *rhythm) switched() bool { return r.turns >= 2 && r.size >= 4*r.turns }

// decodes reports whether the segments may be tokens, or other parts of answers: the host
// often reads a little and gives the GPU no more than that, or it reads again and again,
// as when kernels are tuned. A training gets a batch instead.
func (r *rhythm) decodes() bool { return r.answers > 0.2 && !r.switched() }

// akin reports whether both may belong to the same steps: they have as much content, or
// the work goes from one thread to another as often, however much it is.
func (r *rhythm) akin(o *rhythm) bool {
	return alike(r.size, o.size) || r.switched() && r.turns == o.turns
}

// steady reports whether the segments may be steps by their times, or by the times of
// the process alone: half of them lie within a factor of spread. The times between
// random requests do not. A program with a thread for gradients trains in any case.
func (r *rhythm) steady() bool {
	const spread = 2
	for _, times := range r.times {
		times := times[:min(r.timed, recent)]
		slices.Sort(times)
		half := len(times) / 2
		for i := range times[half:] {
			if r.switched() || times[i+half] <= spread*times[i] {
				return true
			}
		}
	}
	return false
}

// random reports whether the times of two successive lots of segments are those of
// requests. One lot may have two kinds of times, as while a queue fills.
func (r *rhythm) random() bool {
	if r.timed%recent != 0 {
		return false
	}
	before := r.unsteady
	r.unsteady = !r.steady()
	return before && r.unsteady
}

// typically returns the median of the times of the last segments, ns.
func (r *rhythm) typically() float32 {
	times := r.times[0]
	n := min(r.timed, recent)
	slices.Sort(times[:n])
	return times[n/2]
}

// usually returns the median of what differs from one segment to the next.
func (r *rhythm) usually() uint32 {
	differed := r.differed
	n := min(r.compared, recent)
	slices.Sort(differed[:n])
	return differed[n/2]
}

// tight reports whether a few kernels follow each other without a pause.
func (r *rhythm) tight() bool {
	const short = 100e3 // ns
	return r.pause < quietly && !r.switched() && !r.graphs && (r.size < 4 || r.typically() < short)
}

// score rates the strike as the end of a step. The script's own timer stands where
// the script waits or does something else. Short signs survive more interruptions.
func (r *rhythm) score() float32 { return r.pause - 0.5*float32(r.order) }

// alive reports whether the rhythm continues.
func (r *rhythm) alive(size uint32) bool { return size-r.at <= 3*r.size }

// recurs reports whether it continues without an interruption.
func (r *rhythm) recurs(size uint32) bool { return size-r.at <= 2*r.size }

// within reports whether its content is a part of the other's.
func (r *rhythm) within(o *rhythm) bool {
	common := uint32(0)
	for i := range r.typical {
		common += min(r.typical[i], o.typical[i])
	}
	return r.size < o.size && common >= r.size-r.size/5
}

// in reports whether it had a good segment in the last one of o.
func (r *rhythm) in(o *rhythm) bool { return r.at-o.begin.size <= o.size }

// evaluates reports whether it is presumably an evaluation in training o: it has a part
// of its content, or no gradients.
func (r *rhythm) evaluates(o *rhythm) bool { return r.within(o) || o.switched() && !r.switched() }

// holds reports whether o is only a piece of a true step r. A step has more than its
// pieces, such as an update. The rest is more than what a script logs now and then, less
// than an evaluation, and always there. If the pieces of a training vary, the rest is what
// no piece has. The host waits for data or results of each batch of an evaluation, but
// only a few times in an update, such as for a norm.
func (r *rhythm) holds(o *rhythm) bool {
	const few = 4 // waits
	most := float32(64)
	if o.tight() {
		most = 4096
	}
	pieces := float32(r.typical.weight()) / float32(o.typical.weight()) // the sizes may be means
	n := uint32(pieces + 0.5)
	if r.akin(o) || pieces < 1.5 || pieces > most || r.waits[0] > n*min(o.waits[0], o.waits[1])+few {
		return false
	}
	extra, strange := r.beyond(o, n)
	if extra < 2*r.changed() {
		extra = 0
	}
	if o.switched() {
		extra = max(extra, strange)
	}
	return extra >= max(4, o.size/16) && extra <= 3*o.size
}

// changed returns how much differs from one segment to the next: the last difference,
// or the average if that is larger.
func (r *rhythm) changed() uint32 {
	n, sum := min(r.compared, recent), uint32(0)
	if n == 0 {
		return 0
	}
	for _, differs := range r.differed[:n] {
		sum += differs
	}
	return max(r.differed[(r.compared-1)%recent], sum/n)
}

// beyond returns the weight of its content that n pieces do not explain, and the weight
// of the part that no piece has.
func (r *rhythm) beyond(piece *rhythm, n uint32) (extra, strange uint32) {
	for i, weight := range r.typical {
		pieces := n * piece.typical[i]
		extra += max(weight, pieces) - min(weight, pieces)
		if pieces == 0 {
			strange += weight
		}
	}
	return extra, strange
}

// refuted reports whether the segment that ended shows that those before it were no
// steps.
func (r *rhythm) refuted(v verdict, size uint32) bool {
	switch {
	case v == same:
		return r.steps < timely && (r.random() || r.decodes() && r.length < answer)
	case r.switched(): // it trains, and was interrupted
		return false
	case v == longer && r.usually() > r.size/4: // requests that were alike
		return true
	case r.steps < young && size-r.at > (r.steps+certain)*r.size: // a loop in something longer
		return true
	case r.length < certain || r.lengths[0] == 0 || !unlike(r.length, r.lengths[0]):
		return false
	case max(r.length, r.lengths[0]) < request: // one thread launches, in runs of other lengths: tokens
		return true
	case max(r.length, r.lengths[0]) < settled && (r.lengths[1] == 0 || unlike(r.lengths[0], r.lengths[1])):
		return true
	}
	return r.lengths[1] > 0 && unlike(r.lengths[0], r.lengths[1]) && unlike(r.length, r.lengths[1])
}

// unlike reports whether the numbers of steps before two interruptions differ. The
// first few steps do not count, because they are not noticed.
func unlike(a, b uint32) bool {
	return max(a, b)-min(a, b) > max(certain, max(a, b)/50)
}
