package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/symbol"
	"gpusteward/internal/wire"
)

// Bounds of a recorder.
const (
	every        = 2 * time.Millisecond // from one timed launch to the next, about
	MostAtOnce   = 4                    // profiles, those of root not counted,
	MostOfUser   = 2                    // and of one user but root: see exporter.Users
	mostSessions = 16                   // of one process
	mostKernels  = 4096                 // of one process that are told apart
	mostNames    = 256                  // kernels that are named at one look
	mostSamples  = 1024                 // of one kernel that are kept for its P99,
	mostTimes    = 1 << 16              // and of all: a minute has half as many
	mostSpans    = 20_000               // the first ones
	mostSpanName = 128                  // bytes of a span's name
)

// Longest is the longest profile.
const Longest = time.Minute

// Why there is no profile.
var (
	ErrTooMany = fmt.Errorf("%d profiles run already, or %d of yours: try again later", MostAtOnce, MostOfUser)
	ErrRuns    = errors.New("a profile of this process runs for you already: try again later")
)

// A Recorder makes profiles. Its methods are safe for concurrent use.
type Recorder struct {
	Time func(pid int, every time.Duration) // has the hook of a process time a launch now and then; 0: never
	Look func()                             // has Observe called for all sessions
	Now  func() int64                       // CLOCK_MONOTONIC, ns; nil: the system's

	mu   sync.Mutex
	runs map[int][]*run // by PID, one of each user: nobody's profile keeps root's out
}

// A run is the making of one profile.
type run struct {
	uid      uint32        // of the user who asked
	glance   bool          // nobody did: it makes way for whoever does
	ended    chan struct{} // is closed when the process has ended
	began    int64         // CLOCK_MONOTONIC, ns
	sessions map[uint64]*session
	tallies  map[kernel]*tally
	spans    bool // are wanted:
	all      []Span
	times    int // samples that are kept
	launches uint64
	lost     uint64
	once     sync.Once
}

// A kernel is what was launched. The same function has different names in different processes, and GPUs differ by session.
type kernel struct {
	session uint64
	id      uint32
	graph   bool
	gpu     uint8
}

// A tally is what is known of a kernel.
type tally struct {
	name     string
	gpu      string // UUID
	launches uint64
	samples  int
	sum      time.Duration
	some     []time.Duration // of the samples, any as likely as any other
}

// A session is one of the process's.
type session struct {
	reader wire.TraceReader
	ended  bool
	timed  map[uint16]wire.Event // by thread: what it notes next is how long that took
	since  map[uint16]wire.Event // what a thread waits for
}

func (r *Recorder) now() int64 {
	if r.Now != nil {
		return r.Now()
	}
	return wire.Monotonic()
}

// Profile observes a process with sessions for some time, for a user. If the process or ctx ends before, it returns what
// it has.
func (r *Recorder) Profile(ctx context.Context, uid uint32, pid int, d time.Duration, spans bool) (Profile, error) {
	return r.make(ctx, pid, d, &run{uid: uid, spans: spans})
}

// Glance is a Profile for nobody. It ends when a user asks for one of the same process.
func (r *Recorder) Glance(ctx context.Context, pid int, d time.Duration) (Profile, error) {
	return r.make(ctx, pid, d, &run{glance: true})
}

func (r *Recorder) make(ctx context.Context, pid int, d time.Duration, one *run) (Profile, error) {
	began := time.Now()
	one.ended, one.began = make(chan struct{}), r.now()
	one.sessions, one.tallies = map[uint64]*session{}, map[kernel]*tally{}
	if err := r.begin(pid, one); err != nil {
		return Profile{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	again := time.NewTicker(time.Second) // for sessions that begin meanwhile
	defer again.Stop()
	r.Time(pid, every)
	for goes := true; goes; {
		select {
		case <-ctx.Done():
			goes = false
		case <-one.ended:
			goes = false
		case <-again.C:
			r.Time(pid, every)
		}
	}
	if runs, last := r.runsBeside(pid, one); runs {
		if last { // of one that begins just now, the next tick switches it on again
			r.Time(pid, 0)
		}
		r.Look()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[pid] = without(r.runs[pid], one); len(r.runs[pid]) == 0 {
		delete(r.runs, pid)
	}
	p := Profile{PID: pid, Began: began, Seconds: time.Duration(r.now() - one.began).Seconds(), Launches: one.launches,
		Lost: one.lost, Kernels: one.kernels(), Spans: one.all}
	slices.SortStableFunc(p.Spans, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	return p, nil
}

// runsBeside reports whether a run has not made way for another one, and whether it is the last one of the process.
func (r *Recorder) runsBeside(pid int, one *run) (runs, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.runs[pid], one), len(r.runs[pid]) == 1
}

// without returns the other runs.
func without(all []*run, one *run) []*run {
	return slices.DeleteFunc(all, func(other *run) bool { return other == one })
}

func (r *Recorder) begin(pid int, one *run) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.runs[pid], func(other *run) bool {
		return one.glance || !other.glance && other.uid == one.uid
	}) {
		return ErrRuns
	}
	for _, other := range slices.Clone(r.runs[pid]) {
		if other.glance {
			other.once.Do(func() { close(other.ended) })
			r.runs[pid] = without(r.runs[pid], other)
		}
	}
	if r.runs == nil {
		r.runs = map[int][]*run{}
	}
	r.runs[pid] = append(r.runs[pid], one)
	return nil
}

// Observe takes what a process has noted since the last call.
func (r *Recorder) Observe(t broker.Traced) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := t.Trace.Clock()
	if !ok {
		return
	}
	for _, one := range r.runs[t.PID] {
		if one.uid == 0 || t.UID == one.uid { // else another process has the PID by now, or had it before
			one.observe(t, c, r.now())
		}
	}
}

// observe takes what a session has noted since the last call.
func (r *run) observe(t broker.Traced, c wire.Clock, now int64) {
	s := r.sessions[t.Session]
	first := s == nil
	if first {
		if len(r.sessions) >= mostSessions {
			return
		}
		s = &session{timed: map[uint16]wire.Event{}, since: map[uint16]wire.Event{}}
		r.sessions[t.Session] = s
	}
	events, lost := s.reader.Read(t.Trace, c, now, nil)
	if !first { // else they were lost before the profile began
		r.lost += lost
	}
	named := 0
	for _, e := range events {
		if e.At >= r.began {
			r.take(s, t, e, &named)
		}
	}
	if t.Ends && !s.ended {
		s.ended = true
		for _, other := range r.sessions {
			if !other.ended {
				return
			}
		}
		r.once.Do(func() { close(r.ended) })
	}
}

// take takes an event. named counts the names that were looked up.
func (r *run) take(s *session, t broker.Traced, e wire.Event, named *int) {
	switch e.Kind {
	case wire.EventLaunch, wire.EventGraph:
		r.launches++
		one := r.tally(t, e.ID, e.Kind == wire.EventGraph, e.GPU)
		if one == nil {
			break
		}
		one.launches++
		if one.name == "" && *named < mostNames {
			*named++
			if e.Kind == wire.EventGraph {
				*named += wire.GraphKernels
			}
			one.name = symbol.Launched(t.Crash, e)
		}
		r.span(Span{Kind: SpanLaunch, Name: one.name, Thread: e.Thread, GPU: one.gpu}, e.At, 0)
	case wire.EventTimed:
		s.timed[e.Thread] = e
	case wire.EventTook:
		of, is := s.timed[e.Thread]
		delete(s.timed, e.Thread)
		if is && of.GPU == e.GPU {
			r.sample(t, of, time.Duration(e.ID)*10)
		}
	case wire.EventWait, wire.EventCopying, wire.EventHeld:
		s.since[e.Thread] = e
	case wire.EventWaited, wire.EventCopied, wire.EventReleased:
		if of, is := s.since[e.Thread]; is {
			delete(s.since, e.Thread)
			r.span(Span{Kind: waits[of.Kind].kind, Name: waits[of.Kind].name(of), Thread: e.Thread, GPU: uuid(t, e.GPU)}, of.At,
				time.Duration(e.At-of.At))
		}
	case wire.EventCopy:
		r.span(Span{Kind: SpanCopy, Name: copied(e), Thread: e.Thread, GPU: uuid(t, e.GPU)}, e.At, 0)
	case wire.EventCollective:
		r.span(Span{Kind: SpanCollective, Name: "collective", Thread: e.Thread}, e.At, 0)
	case wire.EventBusy:
		took := time.Duration(e.ID) * time.Microsecond
		r.span(Span{Kind: SpanBusy, Name: "busy", GPU: uuid(t, e.GPU)}, e.At-int64(took), took)
	}
}

// sample takes the time of a launch that was timed. Of the times of a kernel, mostSamples are kept by chance, or fewer if
// there are too many in all.
func (r *run) sample(t broker.Traced, e wire.Event, took time.Duration) {
	one := r.tallies[kernel{t.Session, e.ID, true, e.GPU}]
	if one == nil {
		one = r.tallies[kernel{t.Session, e.ID, false, e.GPU}]
	}
	if one == nil { // it was launched before the profile began
		return
	}
	one.samples++
	one.sum += took
	if len(one.some) < mostSamples && r.times < mostTimes {
		r.times++
		one.some = append(one.some, took)
	} else if i := rand.IntN(one.samples); i < len(one.some) {
		one.some[i] = took
	}
	r.span(Span{Kind: SpanKernel, Name: one.name, GPU: one.gpu}, e.At-int64(took), took)
}

// tally returns the tally of a kernel; nil: there are too many.
func (r *run) tally(t broker.Traced, id uint32, graph bool, gpu uint8) *tally {
	k := kernel{t.Session, id, graph, gpu}
	one := r.tallies[k]
	if one == nil && len(r.tallies) < mostKernels {
		one = &tally{gpu: uuid(t, gpu)}
		r.tallies[k] = one
	}
	return one
}

// span adds a span that began at a time.
func (r *run) span(s Span, at int64, took time.Duration) {
	if r.spans && len(r.all) < mostSpans {
		s.Name = s.Name[:min(len(s.Name), mostSpanName)] // the process chose it
		s.Start, s.Seconds = time.Duration(at-r.began).Seconds(), took.Seconds()
		r.all = append(r.all, s)
	}
}

// kernels returns what is known of the kernels, by Total.
func (r *run) kernels() []Kernel {
	type named struct {
		name, gpu string
		graph     bool
	}
	all := map[named]*tally{} // a function that is loaded twice has two handles
	for k, one := range r.tallies {
		kind := wire.EventLaunch
		if k.graph {
			kind = wire.EventGraph
		}
		as := named{cmp.Or(one.name, wire.Unnamed(kind, k.id)), one.gpu, k.graph}
		sum := all[as]
		if sum == nil {
			sum = &tally{}
			all[as] = sum
		}
		sum.launches, sum.samples, sum.sum = sum.launches+one.launches, sum.samples+one.samples, sum.sum+one.sum
		sum.some = append(sum.some, one.some...)
	}
	kernels := []Kernel{}
	total := 0.0
	for as, one := range all {
		k := Kernel{Name: as.name, Graph: as.graph, GPU: as.gpu, Launches: one.launches, Samples: one.samples}
		if one.samples > 0 {
			slices.Sort(one.some)
			k.Mean = one.sum.Seconds() / float64(one.samples)
			if n := len(one.some); n > 0 {
				k.P99 = one.some[n*99/100].Seconds()
			}
			k.Total = k.Mean * float64(k.Launches)
		}
		total += k.Total
		kernels = append(kernels, k)
	}
	for i := range kernels {
		if total > 0 {
			kernels[i].Share = kernels[i].Total / total
		}
	}
	slices.SortFunc(kernels, func(a, b Kernel) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(b.Launches, a.Launches), cmp.Compare(a.Name, b.Name))
	})
	return kernels
}

// uuid returns the UUID of the session's GPU; empty: it is not known.
func uuid(t broker.Traced, gpu uint8) string {
	if int(gpu) < len(t.GPUs) {
		return t.GPUs[gpu]
	}
	return ""
}

// waits are the kinds and names of spans by the events that begin them.
var waits = map[wire.EventKind]struct {
	kind string
	name func(wire.Event) string
}{
	wire.EventWait: {SpanWait, func(e wire.Event) string {
		return "wait for " + [...]string{wire.WaitStream: "a stream", wire.WaitEvent: "an event", wire.WaitContext: "the GPU",
			wire.WaitQueue: "room in the queue"}[e.ID&3]
	}},
	wire.EventCopying: {SpanCopy, copied},
	wire.EventHeld:    {SpanHeld, func(wire.Event) string { return "wait for a turn" }},
}

// copied names a copy.
func copied(e wire.Event) string { return fmt.Sprintf("copy of %d bytes", uint64(e.ID)*64) }
