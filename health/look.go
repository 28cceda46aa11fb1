package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health/incident"
)

// A Look judges a host without an agent: it opens the driver itself, reads
// every GPU, and takes into account what the kernel logged since the boot and
// what an agent remembered. It changes none of that.
type Look struct {
	Host    collectors.Options                                      // of a host that nobody runs
	Kernel  func(ctx context.Context, each func(host.Record)) error // follows the kernel's log until ctx ends; nil: there is none
	Store   Store                                                   // that an agent left
	Boot    string                                                  // the kernel's boot id
	Node    string                                                  // name of the host
	Timeout time.Duration                                           // for all of it, at least LookLeast
}

// How long a Look takes.
const (
	LookLeast = 5 * time.Second        // for a driver that answers at once
	glance    = time.Second            // between samples
	glances   = 3                      // samples
	brief     = 2 * time.Minute        // what takes this long to be a fault cannot be judged
	leave     = 500 * time.Millisecond // for the driver to be closed
)

// Judge looks. It returns within the timeout, whatever the driver does, and
// leaves a call behind that hangs.
func (l Look) Judge(ctx context.Context) Judgement {
	begin := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var notes []string
	l.Store.ReadOnly, l.Host.ReadOnly, l.Host.Renew = true, true, nil
	var h *collectors.Host
	m := NewMonitor(Options{
		Samples: func() []collectors.Sample { return h.Samples() },
		Record: func(e incident.Event) {
			if e.Kind == incident.KindAgent && e.Severity != incident.None {
				notes = append(notes, e.Message)
			}
		},
		Store: l.Store, Boot: l.Boot, Node: l.Node, Log: l.Host.Log,
	}, Settings{})
	l.Host.Events = m.Event
	h = collectors.NewHost(l.Host)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = h.Run(ctx) }()
	go func() { _ = l.Host.Processes.Run(ctx) }()

	until(ctx, begin.Add(l.Timeout-glances*glance-2*leave), func() bool { return settled(h) })
	m.begin(time.Now())
	unjudged := m.engine.hurry()
	unread := make(chan error, 1)
	if l.Kernel != nil {
		go func() { unread <- l.Kernel(ctx, m.line) }()
	}
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for range glances { // the first is late enough for what is read without the driver, after it
		select {
		case <-tick.C:
			m.judge(m.waiting(), time.Now())
		case <-ctx.Done():
			return NoVerdict(Standalone, l.Node, ctx.Err())
		}
	}
	j := Judgement{Verdict: m.Verdict(), Source: Standalone, Unjudged: unjudged, Notes: notes}
	if err := h.Ready(); err != nil {
		j.explain(err)
	}
	select {
	case err := <-unread:
		j.Notes = append(j.Notes, fmt.Sprintf("the kernel's log cannot be read, so XIDs of before are not known: %v", err))
	default:
	}
	cancel()
	until(context.Background(), time.Now().Add(leave), func() bool { return isClosed(ended) })
	return j
}

// explain says why there is no driver, or why a GPU is not read, where that is
// what j comes down to.
func (j *Judgement) explain(err error) {
	if j.Status == incident.Unknown {
		j.Reason = err.Error()
	}
	for i, f := range j.Findings {
		if f.Check == unboundCheck {
			j.Findings[i].Message += " " + err.Error() + "."
		}
	}
}

// unboundCheck is the check that finds GPUs without a driver.
const unboundCheck = "driver_unbound"

// settled reports whether all is read, or it is plain that there is no driver.
// One that has not come back yet may only be slow: without a process that
// keeps the GPUs initialised, opening it takes seconds.
func settled(h *collectors.Host) bool {
	err := h.Driver()
	if err == nil {
		return h.Ready() == nil
	}
	return !errors.Is(err, collectors.ErrOpening) && !errors.Is(err, collectors.ErrHanging)
}

// until waits until is, the time or the end of ctx, whichever comes first.
func until(ctx context.Context, end time.Time, is func() bool) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() && time.Now().Before(end) && ctx.Err() == nil {
		<-tick.C
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// hurry has an engine judge by a few samples that are a second apart, and
// returns the checks that cannot be judged so: those that look back on minutes,
// and those that need what is wrong to last for minutes. What was seen of them
// before still counts. The agent itself is not judged, for there is none.
func (e *Engine) hurry() (unjudged []string) {
	e.every = glance
	e.judges = slices.DeleteFunc(e.judges, func(j *judge) bool { return slices.Contains(agentChecks, j.Check) })
	for _, j := range e.judges {
		short := *j.Check
		short.Levels = slices.Clone(short.Levels)
		can := false
		for i := range short.Levels {
			can = short.Levels[i].hurry() || can
		}
		if j.Check = &short; !can {
			unjudged = append(unjudged, j.ID)
		}
	}
	return unjudged
}

// hurry makes a level be entered after a few samples, and reports whether it
// can be judged by them.
func (l *Level) hurry() bool {
	p, g := l.For.spelled(), l.When.Signal
	if time.Duration(p.N)*p.Every >= brief {
		return false
	}
	if p.N > 1 {
		l.For = Persistence{K: min(p.K, glances), N: min(p.N, glances), Every: glance}
	}
	return !g.optional && (g.window == 0 || g.counts != nil)
}
