package broker

import (
	"context"
	"sync"
	"time"

	"gpusteward/internal/wire"
)

// A trace is the broker's view of a session's trace, from the WELCOME to the
// session's end.
type trace struct {
	mu sync.Mutex
	m  wire.Trace // nil: there is none
	c  wire.Crash
}

// open takes the mapping of the session's leases, if a trace lies behind them.
func (t *trace) open(leases []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(leases) >= wire.TraceAt+wire.TraceSize {
		t.m, t.c = leases[wire.TraceAt:][:wire.TraceSize], leases[wire.TraceAt+wire.TraceSize:]
	}
}

// close precedes the end of the mapping.
func (t *trace) close(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m != nil {
		s.b.options.Observe(s.traced(true))
	}
	t.m, t.c = nil, nil
}

// A Traced is a session that writes a trace.
type Traced struct {
	Session uint64 // its number; none is used twice
	PID     int
	UID     uint32
	Since   time.Time // when it said HELLO
	Tenant  string
	Owner   string   // see Options
	GPUs    []string // UUIDs by the session's number; empty: not governed
	Trace   wire.Trace
	Crash   wire.Crash // may be empty
	Ends    bool       // this is the last look
}

// observeInterval is how often traces are read.
const observeInterval = 100 * time.Millisecond

// observe shows all traces until ctx ends.
func (b *Broker) observe(ctx context.Context) error {
	if b.options.Observe == nil {
		return nil
	}
	tick := time.NewTicker(observeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			b.ShowTraces()
		}
	}
}

// ShowTraces shows all traces as they are now. Otherwise what a process has noted is seen
// within observeInterval, or later on a busy host.
func (b *Broker) ShowTraces() {
	for _, s := range b.begun() {
		s.trace.mu.Lock()
		if s.trace.m != nil {
			b.options.Observe(s.traced(false))
		}
		s.trace.mu.Unlock()
	}
}

// Time has a process note in its trace how long a launch took on the GPU, about as often as that; 0: never.
func (b *Broker) Time(pid int, every time.Duration) {
	for _, s := range b.begun() {
		if s.facts.PID == pid {
			s.page.setTimed(every)
		}
	}
}

// traced returns the session with its trace, whose mutex is held.
func (s *session) traced(ends bool) Traced {
	one := Traced{Session: s.id, PID: s.facts.PID, UID: s.facts.UID, Since: s.since, Owner: s.owner.name,
		Trace: s.trace.m, Crash: s.trace.c, Ends: ends, GPUs: make([]string, len(s.seats))}
	s.mu.Lock()
	one.Tenant = s.tenant
	s.mu.Unlock()
	for i, t := range s.seats {
		if t != nil {
			one.GPUs[i] = t.gpu.uuid
		}
	}
	return one
}
