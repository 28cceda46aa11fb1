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
		looks := &s.b.traces
		s.user.last.Lock()
		defer s.user.last.Unlock()
		for looks.mu.Lock(); !s.b.over() && looks.settle(s.user) >= lookTime; looks.mu.Lock() {
			looks.mu.Unlock()
			select {
			case <-s.b.ended:
			case <-time.After(lookTime):
			}
		}
		defer looks.mu.Unlock()
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

// A process can make a look at its trace take 0.1 s, and others must not miss theirs, nor the enforcer wait for it. So
// looks take a quarter of the time in the long run, of which each user who has sessions has an equal part.
const (
	lookTime  = 20 * time.Millisecond // that a user may take at once, beyond which he waits until it is his part,
	roundTime = observeInterval / 2   // and all of them, beyond which the rest comes first the next time
)

// traces are looked at by one goroutine at a time.
type traces struct {
	*common
	roll *roll

	mu      sync.Mutex
	looked  uint64 // the number of looks at a trace, and
	sharers int    // the users who share the time for them
}

// run shows all traces until ctx ends.
func (t *traces) run(ctx context.Context) error {
	if t.options.Observe == nil {
		return nil
	}
	tick := time.NewTicker(observeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			t.look()
		}
	}
}

// ShowTraces shows all traces as they are now. Otherwise what a process has noted is seen within observeInterval, or
// later on a busy host. Of users whose traces take long to look at, it shows only some, in turn.
func (b *Broker) ShowTraces() { b.traces.look() }

func (t *traces) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.show()
}

// show is look for who holds the mutex.
func (t *traces) show() {
	of := map[*user][]*session{}
	for _, s := range t.roll.begun() {
		of[s.user] = append(of[s.user], s)
	}
	t.roll.mu.Lock()
	t.sharers = 0
	for _, u := range t.roll.users {
		if u.sessions > 0 {
			t.sharers++
		}
	}
	t.roll.mu.Unlock()
	began := t.clock.now()
	for u := range of {
		t.settle(u)
	}
	for _, u := range slices.SortedFunc(maps.Keys(of), func(a, b *user) int {
		return cmp.Or(cmp.Compare(a.owes, b.owes), cmp.Compare(a.looked, b.looked))
	}) {
		all := of[u]
		slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(a.looked, b.looked) })
		for at := t.clock.now(); len(all) > 0 && u.owes < lookTime && at-began < roundTime; all = all[1:] {
			t.looked++
			u.looked, all[0].looked = t.looked, t.looked
			all[0].trace.show(all[0])
			now := t.clock.now()
			u.owes, at = u.owes+now-at, now
		}
	}
}

// settle returns what a user owes now. The mutex is locked.
func (t *traces) settle(u *user) time.Duration {
	now := t.clock.now()
	u.owes, u.settled = max(0, u.owes-(now-u.settled)/4/time.Duration(max(1, t.sharers))), now
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
	for _, s := range b.roll.begun() {
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
