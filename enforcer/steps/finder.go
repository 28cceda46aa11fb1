// Package steps finds the steps of a program in the events that the hook notes
// of it: the repetitions of its main loop, such as those of a training.
//
// A step is the longest stretch of calls that recurs with the same contents, or with
// the same turns of threads: if another thread computes the gradients, as PyTorch's
// does, the work goes to that thread and back as often in each step, however long
// the sequences are. It may have pieces that recur, too: the layers of a network, the
// batches whose gradients are accumulated. It has more than its pieces then, such as
// an update. A log, an evaluation or a checkpoint every N steps makes no longer step:
// a short one belongs to the step in which it is, and a long one lies between steps.
// An evaluation is a part of a training's content, or computes no gradients beside a
// training that does. It does not replace the training, even if it is longer.
//
// These are no steps: one kernel that is launched again and again, waited for
// or not (one graph is); two or three kernels in a tight loop; requests at random
// times or of varying lengths, and the tokens that are decoded in them. A token is read
// by the host, which gives the GPU little more than the token again, while a training
// gets a batch. A loop of one thread that does so is one of steps only if it is longer
// than any answer. Pieces of which the host reads nothing, such as those of a picture,
// may be taken for steps first; they are withdrawn when a second request has another
// number of them. A loop over data that is prepared in always the same way, and requests
// of one length without a pause, cannot be told from a training.
//
// A step ends where the script's own timer likely stands: after a wait, or else in the
// longest pause between two calls. If the same calls follow several pauses, as after the
// updates of two networks, it is where the loop begins.
//
// A training in which another thread computes the gradients is known after eight like
// steps and others after twelve. The marks of steps
// must recur three times before that.
//
// Limits. Two kinds of steps that alternate, as with an actor that learns every second time, count
// as one step; so may 16 steps if something else is done after each 16th. Pieces are taken for steps
// if a step has more than about 40 of them, or if the rest of the step has fewer than four kernels.
// Batches of an evaluation are shown as steps from the 512th on, until the training returns. Up to
// 256 steps of a loop that turns out to be none are withdrawn; those that were counted before stay.
// Of a program with one launching thread: its steps are not found if its kernels vary in number by
// more than an eighth, if its launches wait for room in the queue, or if it makes fewer than about 60
// of them between longer evaluations. The batches of its evaluation are shown from the 12th on, and
// withdrawn if there are fewer than 512. If its data stay on the GPU and it reads something in every
// step, it looks like a language model that answers: its steps are found after 4,096.
//
//	events -> symbols -> signs that recur -> rhythms, whose segments are alike -> the one that is followed -> steps
package steps

import (
	"iter"
	"math"
	"math/bits"
	"time"

	"gpusteward/internal/wire"
)

const (
	threads = 32
	orders  = 3 // of signs: of one symbol, of two and of more
)

// A thread is what is known of a thread of the program.
type thread struct {
	last   uint32    // symbol
	recent [3]uint32 // the last symbols of work
	kind   wire.EventKind
	place  uint16
	id     uint32
	at     int64 // time of its last call

	launched bool // since it last waited for the GPU
	gave     bool // a little data before that
}

// A Finder finds the steps of one process. It belongs to one goroutine.
type Finder struct {
	all      meter
	call     wire.EventKind // the last call
	worked   int64          // time of the last call that gave the GPU work
	launcher uint16         // its thread
	handed   uint32         // the last symbol of work of the thread that launched before
	rested   wire.EventKind // the last call that gave the GPU work or data, or waited for it
	rest     clock          // then
	repeats  bool           // the last graph is that before it
	here     meter          // at the place that is struck
	results  uint64         // launches of which the host has read something
	threads  [threads]thread

	signs     [orders]table
	rhythms   [16]rhythm
	marks     [16]uint32     // their signs; 0: none
	watched   [orders]uint64 // by order, the set of the highest bits of those
	depth     int            // number of orders that are looked at: all, or as many as there are marks of
	searching bool           // signs are looked for
	followed  *rhythm        // nil: there are no steps
	decoded   *rhythm        // what may be tokens; nil: nothing is
	tokens    uint64         // of those, ever

	bans    [4]ban
	banned  uint8 // number of bans ever
	pattern uint8
	since   int64 // time from which the pattern is followed
	outside int64 // ns
	open    meter // begin of the current step
	ending  bool  // a step has ended, but its end may be a little later:
	ends    meter
	what    flags
	longest int64  // pause before ends, ns
	until   uint32 // size of all content at which it is known

	finished uint64
	steps    [256]Step
}

// Feed takes the events since the last call, in order of time. Threads may be
// out of order by a few microseconds.
func (f *Finder) Feed(events []wire.Event) {
	r := f.followed
	f.searching = r == nil || r.steps < settled || r.length < certain || !r.alive(f.all.size)
	f.watch()
	for i := range events {
		f.feed(&events[i])
	}
}

func (f *Finder) feed(e *wire.Event) {
	if e.Kind >= kinds {
		return
	}
	kind := e.Kind
	if kind == wire.EventWaited && e.ID == uint32(wire.WaitQueue) {
		kind = admitted
	}
	trait := &traits[kind]
	f.all.count[e.Kind]++
	f.all.sum[e.Kind] += uint64(e.ID)
	if !trait.call {
		return
	}
	if !f.all.pass(e.At, &traits[f.call], trait) {
		f.Lost()
	}
	if f.call == 0 { // nothing is known of what was before
		f.rest = f.all.clock
	}
	f.call = kind
	t := &f.threads[e.Thread%threads]
	if trait.data {
		f.feedback(t, e)
	}
	t.kind, t.place, t.id, t.at = e.Kind, e.Thread, e.ID, f.all.at
	if trait.symbol == 0 {
		return
	}
	symbol := mix(trait.symbol ^ e.ID&trait.name ^ uint32(e.GPU)<<24)
	if symbol != t.last || trait.repeats {
		f.repeats = symbol == t.last
		t.last = symbol
		if f.ending {
			f.linger()
		}
		f.mark(t, symbol, trait.weight > 0)
		f.all.size += trait.weight
		f.all.content[symbol%bins] += trait.weight
	}
	f.rest, f.rested = f.all.clock, kind
	if trait.weight > 0 {
		t.launched = e.Kind != wire.EventCopied
		f.worked = f.all.at
		if e.Thread != f.launcher {
			f.all.switches++
			f.handed = f.threads[f.launcher%threads].recent[0]
			f.launcher = e.Thread
		}
	}
}

// feedback counts how often a thread waits, reads a result, or waits after it gave a little, and
// how much it gives the GPU before it launches. Several reads of one result are one.
func (f *Finder) feedback(t *thread, e *wire.Event) {
	waits := e.Kind == wire.EventCopying || e.Kind == wire.EventWait && e.ID != uint32(wire.WaitQueue)
	if waits {
		f.all.waits++
	}
	reads := false
	switch e.Kind {
	case wire.EventWait:
		reads = waits && (t.kind == wire.EventCopy || t.gave)
	case wire.EventWaited:
		t.launched, t.gave = false, false
	case wire.EventCopy, wire.EventCopying:
		reads = e.Kind == wire.EventCopying && e.ID <= little
		if !t.launched {
			f.all.given += uint64(e.ID)
			t.gave = t.gave || e.ID <= little
		}
	}
	if results := f.all.count[wire.EventLaunch] + f.all.count[wire.EventGraph]; reads && results != f.results {
		f.results = results
		f.all.reads++
	}
}

// mark looks at the signs that end with a thread's new symbol.
func (f *Finder) mark(t *thread, symbol uint32, work bool) {
	signs := [orders]uint32{symbol}
	if f.depth > 1 {
		signs[1] = mix(symbol + bits.RotateLeft32(t.recent[0], 7))
		signs[2] = mix(signs[1]+bits.RotateLeft32(t.recent[1], 13)+bits.RotateLeft32(t.recent[2], 19)) + f.handed
	}
	if work {
		t.recent = [...]uint32{symbol, t.recent[0], t.recent[1]}
	}
	for order, hash := range signs[:f.depth] {
		if f.watched[order]&(1<<(hash>>26)) != 0 {
			f.strike(hash, uint8(order), t.place)
		}
	}
	if f.searching {
		f.search(&signs, f.pause(t.place))
	}
}

// search looks at signs that may recur.
func (f *Finder) search(signs *[orders]uint32, pause float32) {
	for order, hash := range signs {
		s := f.signs[order].see(hash, f.all.size, f.all.switches, pause)
		if s != nil && s.streak%16 == enough && s.span >= 2 {
			f.propose(s, uint8(order))
		}
	}
}

// pause is the time since the last work for the GPU, as a logarithm to base 2 of
// ns: the longer it was, the likelier the script's own timer stands here. It is
// likelier still after a wait, and less if another thread goes on.
func (f *Finder) pause(thread uint16) float32 {
	pause := logarithm(f.all.at - f.worked)
	switch {
	case f.call == wire.EventWaited:
		return pause + 6
	case thread != f.launcher:
		return pause - 3
	}
	return pause
}

// logarithm is to base 2, and less than 0.1 off.
func logarithm(n int64) float32 {
	const one, unit = 127 << 23, 1 << 23
	return float32(int32(math.Float32bits(float32(max(n, 1))))-one) / unit
}

// mix is a hash.
func mix(n uint32) uint32 {
	n = (n ^ n>>16) * 0x7feb352d
	return n ^ n>>15
}

// Lost tells the finder that events before the next ones are missing: the step
// in which that happened is not one.
func (f *Finder) Lost() {
	f.close()
	f.call = 0
	f.threads = [threads]thread{}
	for i := range f.rhythms {
		f.rhythms[i].open = false
	}
}

// Finished returns the number of steps that ended ever, and of which Steps
// returns the last.
func (f *Finder) Finished() uint64 { return f.finished }

// Steps appends the finished steps from this number on to all, without those
// that are forgotten or were withdrawn.
func (f *Finder) Steps(from uint64, all []Step) []Step {
	if kept := uint64(len(f.steps)); f.finished > kept {
		from = max(from, f.finished-kept)
	}
	for ; from < f.finished; from++ {
		if s := f.steps[from%uint64(len(f.steps))]; s.flags&withdrawn == 0 {
			all = append(all, s)
		}
	}
	return all
}

// Tokens returns how often what may be a token has recurred: it is a step after all
// if it recurs more often than the tokens of any answer.
func (f *Finder) Tokens() uint64 { return f.tokens }

// last yields up to n steps of the pattern, the last first.
func (f *Finder) last(n int) iter.Seq[*Step] {
	return func(yield func(*Step) bool) {
		for i := 1; i <= min(n, len(f.steps)) && uint64(i) <= f.finished; i++ {
			s := &f.steps[(f.finished-uint64(i))%uint64(len(f.steps))]
			if s.flags&withdrawn != 0 || s.Pattern != f.pattern || !yield(s) {
				return
			}
		}
	}
}

// A Wait is a call in which a thread is.
type Wait struct {
	Thread uint16
	For    wire.EventKind // EventWait, EventCopying or EventHeld
	ID     uint32         // of that event
	Since  int64          // CLOCK_MONOTONIC, ns
}

// A Status says what a program does now.
type Status struct {
	Known    bool // it has steps, though it may do something else
	Stepping bool // or only briefly interrupted
	Within   bool // not interrupted: its calls since the last step are at most two steps
	Decodes  bool // what may be tokens: its calls since the last one are at most two of them
	Pattern  uint8
	Since    int64         // CLOCK_MONOTONIC, ns: from then on its steps are known
	Median   time.Duration // of its last 32 steps
	Last     int64         // CLOCK_MONOTONIC, ns: end of the last step
	Idle     time.Duration // since then
	Outside  time.Duration // time that belonged to no step, of all patterns
	Waits    []Wait        // calls that have not returned
}

// Status returns the status at a time of CLOCK_MONOTONIC in ns.
func (f *Finder) Status(now int64) Status {
	s := Status{Known: f.followed != nil, Outside: time.Duration(f.outside)}
	for i := range f.threads {
		if t := &f.threads[i]; t.kind < kinds && traits[t.kind].after != launching {
			s.Waits = append(s.Waits, Wait{Thread: t.place, For: t.kind, ID: t.id, Since: t.at})
		}
	}
	s.Decodes = f.decoding() && f.decoded.recurs(f.all.size)
	if r := f.followed; r == nil || f.all.size-r.at > interim*r.size {
		return s
	}
	s.Within = f.followed.recurs(f.all.size)
	s.Stepping, s.Pattern, s.Since, s.Median = true, f.pattern, f.since, time.Duration(f.median(32))
	s.Last = f.since
	for step := range f.last(1) {
		s.Last = step.End
	}
	s.Idle = time.Duration(max(0, now-s.Last))
	return s
}
