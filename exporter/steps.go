package exporter

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// Steps are the steps of a workload, on all its GPUs.
type Steps struct {
	Seconds float64  `json:"seconds,omitempty"`       // median of the last steps, where it is longest; 0: none now
	Parts   byLabel  `json:"part_seconds,omitempty"`  // of a step, by part: a mean over a minute or two
	Goodput *float64 `json:"goodput_ratio,omitempty"` // time in steps, of that in and between them, over 15 minutes
	Slow    byLabel  `json:"slow_ratio,omitempty"`    // slow ones of the steps of the last 15 minutes, by cause
}

// A Rank is a process in a communicator.
type Rank struct {
	Communicator string   `json:"communicator"`
	Rank         int      `json:"rank"`
	Collectives  float64  `json:"collectives"`                  // that it called
	Seconds      *float64 `json:"collective_seconds,omitempty"` // of one on the GPU, a mean over a minute or two
}

// totals count what a workload's processes did since they began.
type totals struct {
	steps, outside float64
	parts, slow    byLabel
	ranks          map[membership]measured
}

// A membership is a rank of a communicator.
type membership struct {
	communicator string
	rank         int
}

// measured are collectives whose time on the GPU is known.
type measured struct{ count, seconds float64 }

// stepFacts read the samples of steps and ranks.
var stepFacts = map[*collectors.Metric]func(w *Workload, s collectors.Sample){
	workloads.JobSteps:   func(w *Workload, s collectors.Sample) { w.totals.steps += s.Value },
	workloads.JobOutside: func(w *Workload, s collectors.Sample) { w.totals.outside += s.Value },
	workloads.JobParts:   func(w *Workload, s collectors.Sample) { w.totals.parts.add(last(s), s.Value) },
	workloads.JobSlow:    func(w *Workload, s collectors.Sample) { w.totals.slow.add(last(s), s.Value) },
	workloads.RankCollectives: func(w *Workload, s collectors.Sample) {
		m := member(s)
		j := w.on(s).job()
		j.Ranks = append(j.Ranks, Rank{Communicator: m.communicator, Rank: m.rank, Collectives: s.Value})
	},
	workloads.RankMeasured: func(w *Workload, s collectors.Sample) { w.totals.measure(s, measured{count: s.Value}) },
	workloads.RankSeconds:  func(w *Workload, s collectors.Sample) { w.totals.measure(s, measured{seconds: s.Value}) },
}

func init() {
	for metric, note := range stepFacts {
		workloadFacts[metric] = func(w *Workload, s collectors.Sample) {
			if w.totals == nil {
				w.totals = &totals{ranks: map[membership]measured{}}
			}
			note(w, s)
		}
	}
}

func member(s collectors.Sample) membership {
	return membership{label(s, "communicator"), number(label(s, "rank"))}
}

func (t *totals) measure(s collectors.Sample, more measured) {
	was := t.ranks[member(s)]
	t.ranks[member(s)] = measured{was.count + more.count, was.seconds + more.seconds}
}

// A pace remembers the totals of the last 15 minutes, a minute apart. It is
// safe for concurrent use.
type pace struct {
	mu   sync.Mutex
	past []moment // the oldest first
}

// A moment has the totals of workloads by name.
type moment struct {
	at time.Time
	of map[string]*totals
}

const (
	paceStep = time.Minute
	paceKept = 15 * time.Minute
)

// tell adds the steps of the workloads to s.
func (p *pace) tell(s *State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.past = slices.DeleteFunc(p.past, func(m moment) bool { return s.Time.Sub(m.at) > paceKept })
	now := moment{s.Time, map[string]*totals{}}
	for i := range s.Workloads {
		if w := &s.Workloads[i]; w.totals != nil {
			now.of[w.Name] = w.totals
			recent, old := p.before(w, s.Time)
			w.step(recent, old)
		}
	}
	if n := len(p.past); n == 0 || s.Time.Sub(p.past[n-1].at) >= paceStep {
		p.past = append(p.past, now)
	}
}

// before returns the totals of w a minute or two ago, or before its last step,
// and the oldest that are known. Those before it began are zero.
func (p *pace) before(w *Workload, now time.Time) (recent, old *totals) {
	recent = new(totals)
	for _, m := range p.past {
		t := m.of[w.Name]
		if t == nil || t.steps > w.totals.steps { // it has left a GPU
			continue
		}
		if old == nil {
			old = t
		}
		if t.steps < w.totals.steps && now.Sub(m.at) >= paceStep {
			recent = t
		}
	}
	if old == nil {
		old = new(totals)
	}
	return recent, old
}

// step states the steps and ranks of w since these totals. A server has none.
func (w *Workload) step(recent, old *totals) {
	t := w.totals
	longest := 0.0
	for _, g := range w.GPUs {
		if g.Job == nil {
			continue
		}
		g.Job.rank(t, recent)
		if g.Job.Stepping {
			longest = max(longest, g.Job.Step)
		}
	}
	if t.steps == 0 {
		return
	}
	w.Steps = &Steps{Seconds: longest, Parts: t.parts.each(recent.parts, t.steps-recent.steps),
		Slow: t.slow.each(old.slow, t.steps-old.steps)}
	in := t.parts.total() - old.parts.total()
	if all := in + t.outside - old.outside; in >= 0 && all > 0 {
		goodput := min(1, in/all)
		w.Steps.Goodput = &goodput
	}
}

// rank states how long the ranks' collectives take, and sorts the ranks.
func (j *Job) rank(t, recent *totals) {
	for i := range j.Ranks {
		r := &j.Ranks[i]
		now, was := t.ranks[membership{r.Communicator, r.Rank}], recent.ranks[membership{r.Communicator, r.Rank}]
		if now.count > was.count {
			mean := (now.seconds - was.seconds) / (now.count - was.count)
			r.Seconds = &mean
		}
	}
	slices.SortFunc(j.Ranks, func(a, b Rank) int {
		return cmp.Or(cmp.Compare(a.Communicator, b.Communicator), cmp.Compare(a.Rank, b.Rank))
	})
}
