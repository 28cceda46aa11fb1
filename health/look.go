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

// A Look judges a host without an agent. It opens the driver itself, reads
// every GPU, and considers the kernel's messages since the boot and the state
// that an agent left. It changes neither.
type Look struct {
	Host collectors.Options // of a host without a running agent
	// follows the kernel's log until ctx ends; nil: there is none
	Kernel   func(ctx context.Context, each func(host.Record)) error
	Store    Store         // an agent's, if there is one
	Boot     string        // the kernel's boot id
	Node     string        // name of the host
	Timeout  time.Duration // for the whole look, at least LookLeast
	Settings Settings      // of the checks
}

// Times of a Look.
const (
	LookLeast = 5 * time.Second        // for a driver that answers at once
	glance    = time.Second            // between samples
	glances   = 3                      // samples
	brief     = 2 * time.Minute        // a look cannot judge conditions that must last this long
	leave     = 500 * time.Millisecond // to close the driver
)

// Judge looks. It returns within the timeout, whatever the driver does, and
// abandons a call that hangs.
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
	}, l.Settings)
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
	for range glances { // readings without the driver come later than the driver's
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
		j.Notes = append(j.Notes,
			fmt.Sprintf("the kernel's log cannot be read, so earlier XIDs are unknown: %v", err))
	default:
	}
	cancel()
	until(context.Background(), time.Now().Add(leave), func() bool { return isClosed(ended) })
	return j
}

// explain gives the reason for a missing driver, or for a GPU that is not read,
// if j depends on it.
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

// settled reports whether everything is read, or there is clearly no driver. A
// driver that has not answered yet may only be slow: without a process that
// keeps the GPUs initialised, opening it takes seconds.
func settled(h *collectors.Host) bool {
	err := h.Driver()
	if err == nil {
		ready := h.Ready()
		return ready == nil || errors.Is(ready, collectors.ErrNoGPUs)
	}
	return !errors.Is(err, collectors.ErrOpening) && !errors.Is(err, collectors.ErrHanging)
}

// until waits for is, the time or the end of ctx, whichever comes first.
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

// hurry makes an engine judge by a few samples at intervals of a second, and
// returns the checks that this excludes: those that look back on minutes, and
// those whose condition must last for minutes. Their earlier findings still
// count. The agent itself is not judged, because there is none.
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
		if j.Check = &short; !can && !j.off {
			unjudged = append(unjudged, j.ID)
		}
	}
	return unjudged
}

// hurry lets a level be entered after a few samples, and reports whether they
// can judge it.
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
