package jobs

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"gpusteward/internal/wire"
)

// A straggler is a rank whose own work before a collective takes longer than its
// peers': it comes last, they wait for it, and it waits least. The ranks of a
// communicator on this host run laps of some steps. A pause is no part of a lap
// (see communicator.paused), and a lap ends only after all have stepped.

// A record is what a process has done by the end of a step. Seconds of parts are
// in the order of wire.StepParts.
type record struct {
	steps uint64
	parts [5]float64
	in    [wire.Communicators]wire.Communicator
	pause [wire.Communicators]float64
}

// collected notes a collective that ended on the GPU. In one that was longer than
// a step, another rank paused. A straggler is no pause: the step has its time, too.
func (p *process) collected(e wire.Event) {
	took := time.Duration(e.ID) * time.Microsecond
	if took < pauseLeast {
		return
	}
	if median := p.finder.Status(e.At).Median; median > 0 && took > median {
		p.communicators[e.GPU%wire.Communicators].paused += took.Seconds()
	}
}

// mark notes what the process has done, if a step has just ended.
func (p *process) mark() {
	if p.taken == 0 || p.sums.Steps == p.record.steps {
		return
	}
	p.record.steps = p.sums.Steps
	for i, part := range wire.StepParts {
		p.record.parts[i] = p.sums.Parts[part]
	}
	for i := range p.communicators {
		p.record.in[i], p.record.pause[i] = p.communicators[i].Communicator, p.communicators[i].paused
	}
}

// stragglerCauses are the causes by the part of a step that is longer than the
// peers'.
var stragglerCauses = map[string]string{"launching": "host", "host": "host", "copying": "copy", "held": "quota",
	"waiting": "gpu"}

// A stride is a mean step of a process in a lap, s.
type stride struct {
	collecting float64 // in all communicators: one that waits in one comes late to the next
	parts      [5]float64
}

// since returns the mean step after another record. Not all collectives are
// measured: each measured one stands for several that the GPU is known to have done.
// The number of calls does not tell that, because the program calls ahead.
func (r *record) since(b *record) (s stride) {
	steps := float64(r.steps - b.steps)
	for i := range r.in {
		now, then := &r.in[i], &b.in[i]
		if now.ID == 0 || now.ID != then.ID || now.Measured <= then.Measured {
			continue
		}
		seconds := float64(now.MeasuredNS-then.MeasuredNS)/1e9 - (r.pause[i] - b.pause[i])
		s.collecting += max(0, seconds) * float64(now.Ended-then.Ended) / float64(now.Measured-then.Measured) / steps
	}
	for i := range r.parts {
		s.parts[i] = (r.parts[i] - b.parts[i]) / steps
	}
	return s
}

// A race is what is known of the ranks of a communicator on this host.
type race struct {
	runners []*runner // by PID
	since   int64     // when the lap began, CLOCK_MONOTONIC, ns
	length  int64     // of the last lap, ns
}

// A runner is a rank in a race.
type runner struct {
	p        *process
	race     *race
	ranks    int // of the communicator
	begin    record
	stride   stride
	findings uint8 // one bit for each of the last laps
	laps     int
	named    bool
	lost     float64    // of the time, in the last laps with a finding
	excess   [5]float64 // of its parts over its peers', as a part of a step, in these laps
}

// Stragglers returns the present stragglers. The caller calls it once a second,
// after Look.
func (o *Observer) Stragglers() (all []wire.StragglerStats) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.now()
	races := map[communicatorOf]*race{}
	most, victims := map[*process]*runner{}, map[*process]bool{}
	for of, ranks := range o.communicators() {
		r := o.races[of]
		if r == nil || !r.of(ranks) || at-r.since > max(int64(lapForgotten), lapsAway*r.length) {
			r = newRace(of, ranks, at)
		}
		races[of] = r
		r.lap(at)
		finds := slices.ContainsFunc(r.runners, (*runner).found)
		for _, x := range r.runners {
			if finds && !x.found() {
				victims[x.p] = true // it waits, and comes late to its other communicators
			}
			if o := most[x.p]; x.named && (o == nil || x.ranks > o.ranks || x.ranks == o.ranks && x.lost > o.lost) {
				most[x.p] = x
			}
		}
	}
	o.races = races
	for p, x := range most {
		if !victims[p] {
			all = append(all, wire.StragglerStats{Tenant: p.tenant, Workload: p.sums.Workload, GPU: p.gpu(), PID: p.pid,
				Rank: int(p.largest()[0].Rank), Cause: o.causeOf(x), Lost: x.lost})
		}
	}
	slices.SortFunc(all, func(a, b wire.StragglerStats) int { return cmp.Compare(a.PID, b.PID) })
	return all
}

// communicators returns the processes that step, by communicator, where several do.
// It leaves out those that send and receive, because such waits are not measured, and parties with too many.
func (o *Observer) communicators() map[communicatorOf][]*process {
	all := map[communicatorOf][]*process{}
	for _, p := range o.processes {
		if p.ended > 0 || p.record.steps == 0 || slices.ContainsFunc(p.communicators[:], communicator.sends) {
			continue
		}
		for i := range p.communicators {
			if c := &p.communicators[i]; c.there && c.Measured > 0 {
				of := communicatorOf{p.tenant, p.owner, c.ID}
				all[of] = append(all[of], p)
			}
		}
	}
	crowded := crowded(all)
	for of, ranks := range all {
		if len(ranks) < 2 || crowded[of] {
			delete(all, of)
		}
		slices.SortFunc(ranks, func(a, b *process) int { return cmp.Compare(a.pid, b.pid) })
	}
	return all
}

func (c communicator) sends() bool { return c.there && c.Op >= wire.Send }

func newRace(of communicatorOf, ranks []*process, at int64) *race {
	r := &race{since: at}
	for _, p := range ranks {
		c := p.in(of.id)
		r.runners = append(r.runners, &runner{p: p, race: r, ranks: int(c.Ranks), begin: p.record})
	}
	return r
}

// of reports whether the race is that of these processes.
func (r *race) of(ranks []*process) bool {
	return slices.EqualFunc(r.runners, ranks, func(x *runner, p *process) bool { return x.p == p })
}

// lap ends a lap if it is long enough, and all have stepped.
func (r *race) lap(at int64) {
	if at-r.since < int64(lapLeast) ||
		slices.ContainsFunc(r.runners, func(x *runner) bool { return x.p.record.steps <= x.begin.steps }) {
		return
	}
	medians := make([]float64, len(r.runners))
	for i, x := range r.runners {
		x.stride = x.p.record.since(&x.begin)
		x.begin = x.p.record
		medians[i] = x.p.finder.Status(at).Median.Seconds()
	}
	step := median(medians)
	for _, x := range r.runners {
		x.judge(step)
	}
	r.since, r.length = at, at-r.since
}

// found reports whether the last lap had a finding about the rank.
func (x *runner) found() bool { return x.findings&1 != 0 }

// judge judges a rank in the last lap; step is the typical step, s.
func (x *runner) judge(step float64) {
	usual, apart := x.peers(func(s *stride) float64 { return s.collecting })
	lost := usual - x.stride.collecting
	x.findings = x.findings << 1 & (1<<lapsKept - 1)
	if step > 0 && lost > max(lostLeast*step, lostFactor*apart) {
		x.findings |= 1
		x.laps++
		weight := 1 / float64(min(x.laps, lapsKept))
		x.lost += weight * (lost/step - x.lost)
		for i := range x.excess {
			usual, _ := x.peers(func(s *stride) float64 { return s.parts[i] })
			x.excess[i] += weight * ((x.stride.parts[i]-usual)/step - x.excess[i])
		}
	}
	switch n := bits.OnesCount8(x.findings); {
	case n >= lapsToName:
		x.named = true
	case n < lapsToStay:
		x.named, x.laps, x.lost, x.excess = false, 0, 0, [5]float64{}
	}
}

// peers returns the median of a value of the other ranks, and the median of their
// distances from it.
func (x *runner) peers(of func(s *stride) float64) (usual, apart float64) {
	var all []float64
	for _, y := range x.race.runners {
		if y != x {
			all = append(all, of(&y.stride))
		}
	}
	usual = median(all)
	for i := range all {
		all[i] = math.Abs(all[i] - usual)
	}
	return usual, median(all)
}

// causeOf returns the part of its steps that makes a rank late. If none is
// longer than its peers', the wait for its GPU is not shorter either: the GPU's
// own work takes longer. The cause is then what is true of this GPU and not of
// most of its peers'.
func (o *Observer) causeOf(x *runner) string {
	most := 0
	for i, v := range x.excess {
		if v > x.excess[most] {
			most = i
		}
	}
	switch {
	case x.excess[most] > lostLeast/2:
		return stragglerCauses[wire.StepParts[most]]
	case o.Evidence == nil:
		return "gpu"
	}
	own, others := o.Evidence(x.p.gpu(), x.p.pid).facts(), [3]int{}
	for _, y := range x.race.runners {
		for i, is := range o.Evidence(y.p.gpu(), y.p.pid).facts() {
			others[i] += truth(is && y != x)
		}
	}
	for i, cause := range []string{"thermal", "power", "neighbour"} {
		if own[i] && 2*others[i] < len(x.race.runners) {
			return cause
		}
	}
	return "gpu"
}

func (e Evidence) facts() [3]bool { return [3]bool{e.Thermal, e.Power, e.Neighbours >= lostLeast} }

// median returns the median; of an even number, the mean of two. It sorts the
// values.
func median(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}
