package broker

import (
	"slices"
	"sync"
	"time"
)

// A Session is a process that has a page.
type Session struct {
	PID    int
	UID    uint32
	Tenant string
	Party  string // see procs.Party: what is counted by user
	Hook   string // version
	Stale  bool   // it fell silent
	Since  time.Time
	GPUs   []SessionGPU // that are governed
}

// A SessionGPU is what a session has of one GPU.
type SessionGPU struct {
	UUID      string
	Committed uint64 // booked bytes, including reserved ones
	// the longest time slice that the process gave its contexts itself; 0: none beyond the driver's default
	Slice time.Duration
}

// Sessions returns all sessions with a page, in no order. It holds no lock for
// longer than a look at one of them.
func (b *Broker) Sessions() []Session {
	begun := b.roll.begun()
	all := make([]Session, 0, len(begun))
	for _, s := range begun {
		s.mu.Lock()
		tenant := s.tenant
		s.mu.Unlock()
		one := Session{PID: s.facts.PID, UID: s.facts.UID, Tenant: tenant, Party: s.user.name, Hook: s.hook,
			Stale: state(s.state.Load()) == stale, Since: s.since}
		for _, t := range s.seats {
			if t != nil {
				one.GPUs = append(one.GPUs, SessionGPU{t.gpu.uuid, t.gpu.memory.Session(s.id),
					time.Duration(t.own.Load()) * time.Microsecond})
			}
		}
		all = append(all, one)
	}
	return all
}

// Absent tells the broker which processes are suspended, by PID: before the driver is
// asked to suspend them, and once they run again. Their sessions get no turns and delay
// nobody, and all other sessions share the GPUs. Their hooks leave the driver alone. The
// broker keeps the map.
func (b *Broker) Absent(pids map[int]bool) {
	b.absent.mu.Lock()
	defer b.absent.mu.Unlock()
	b.absent.pids = pids
	for _, s := range b.roll.begun() {
		s.setAbsent(pids[s.facts.PID])
	}
}

// absent are the suspended processes, by PID.
type absent struct {
	mu   sync.Mutex
	pids map[int]bool
}

// greet tells a session that has begun whether its process is suspended.
func (a *absent) greet(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.setAbsent(a.pids[s.facts.PID])
}

func (s *session) setAbsent(absent bool) {
	if s.absent.Swap(absent) == absent {
		return
	}
	s.page.setSuspended(absent)
	for _, t := range s.seats {
		if t != nil {
			t.gpu.do(func() { t.gpu.quiet(t, state(s.state.Load()) == stale) })
		}
	}
}

// Notice sends a line to the logs of the given processes that have a session; a
// long line is cut.
func (b *Broker) Notice(text string, pids ...int) {
	for _, s := range b.roll.begun() {
		if slices.Contains(pids, s.facts.PID) {
			s.notice(text)
		}
	}
}
