package broker

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"gpusteward/internal/wire"
)

// A trace is the broker's view of a session's trace, from the WELCOME to the
// session's end.
type trace struct {
	mu sync.Mutex
	m  wire.Trace // none before open
	c  wire.Crash
}

// open takes the mapping of the session's leases, and the file, in which a trace lies behind them.
func (t *trace) open(leases []byte, file io.ReaderAt, crash bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m = wire.NewTrace(leases[wire.TraceAt:], io.NewSectionReader(file, wire.TraceAt, wire.TraceSize))
	if crash {
		t.c = wire.NewCrash(io.NewSectionReader(file, wire.TraceAt+wire.TraceSize, wire.CrashSize))
	}
}

// close precedes the end of the mapping. The last look at a trace has all that the process noted lately. Those of a user
// come one after the other, each when it is that user's part: meanwhile the trace is shown as before. A broker that ends
// has none, as its processes go on.
func (t *trace) close(s *session) {
	t.mu.Lock()
	there := t.m.There()
	t.mu.Unlock()
	if there {
		s.user.last.Lock()
		defer s.user.last.Unlock()
		for s.b.looks.Lock(); !s.b.over() && s.user.settles(s.b) >= lookTime; s.b.looks.Lock() {
			s.b.looks.Unlock()
			select {
			case <-s.b.ended:
			case <-time.After(lookTime):
			}
		}
		defer s.b.looks.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m.There() && !s.b.over() {
		began := s.b.clock.now()
		s.b.options.Observe(s.traced(true))
		s.user.owes += s.b.clock.now() - began
	}
	t.m, t.c = wire.Trace{}, wire.Crash{}
}

// A Traced is a session that writes a trace.
type Traced struct {
	Session uint64 // its number; none is used twice
	PID     int
	UID     uint32
	Since   time.Time // when it said HELLO
	Tenant  string
	Owner   string   // see Options
	Party   string   // see procs.Party: what is counted by user
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

// A process can make a look at its trace take 0.1 s, and others must not miss theirs, nor the enforcer wait for it. So
// looks take a quarter of the time in the long run, of which each user who has sessions has an equal part.
const (
	lookTime  = 20 * time.Millisecond // that a user may take at once, beyond which he waits until it is his part,
	roundTime = observeInterval / 2   // and all of them, beyond which the rest comes first the next time
)

// ShowTraces shows all traces as they are now. Otherwise what a process has noted is seen within observeInterval, or
// later on a busy host. Of users whose traces take long to look at, it shows only some, in turn.
func (b *Broker) ShowTraces() {
	b.looks.Lock()
	defer b.looks.Unlock()
	b.show()
}

// show is ShowTraces for who holds the mutex of looks.
func (b *Broker) show() {
	of := map[*user][]*session{}
	for _, s := range b.begun() {
		of[s.user] = append(of[s.user], s)
	}
	b.mu.Lock()
	b.sharers = 0
	for _, u := range b.users {
		if u.sessions > 0 {
			b.sharers++
		}
	}
	b.mu.Unlock()
	began := b.clock.now()
	for u := range of {
		u.settles(b)
	}
	for _, u := range slices.SortedFunc(maps.Keys(of), func(a, b *user) int {
		return cmp.Or(cmp.Compare(a.owes, b.owes), cmp.Compare(a.looked, b.looked))
	}) {
		all := of[u]
		slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(a.looked, b.looked) })
		for at := b.clock.now(); len(all) > 0 && u.owes < lookTime && at-began < roundTime; all = all[1:] {
			b.looked++
			u.looked, all[0].looked = b.looked, b.looked
			all[0].trace.show(all[0])
			now := b.clock.now()
			u.owes, at = u.owes+now-at, now
		}
	}
}

// settles returns what the user owes now. The mutex of looks is locked.
func (u *user) settles(b *Broker) time.Duration {
	now := b.clock.now()
	u.owes, u.settled = max(0, u.owes-(now-u.settled)/4/time.Duration(max(1, b.sharers))), now
	return u.owes
}

// show shows the trace as it is now.
func (t *trace) show(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m.There() {
		s.b.options.Observe(s.traced(false))
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
	one := Traced{Session: s.id, PID: s.facts.PID, UID: s.facts.UID, Since: s.since, Owner: s.owner, Party: s.user.name,
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
