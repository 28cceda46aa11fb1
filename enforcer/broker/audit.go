package broker

import (
	"slices"
	"time"
)

// A Session is a process that has a page.
type Session struct {
	PID    int
	UID    uint32
	Tenant string
	Hook   string // version
	Stale  bool   // it fell silent
	Since  time.Time
	GPUs   []SessionGPU // that are governed
}

// A SessionGPU is what a session has of one GPU.
type SessionGPU struct {
	UUID      string
	Committed uint64 // bytes that are booked for it, those that it reserved included
}

// Sessions returns all sessions that have a page, in no order. No lock is held
// for longer than it takes to look at one of them.
func (b *Broker) Sessions() []Session {
	begun := b.begun()
	all := make([]Session, 0, len(begun))
	for _, s := range begun {
		s.mu.Lock()
		tenant := s.tenant
		s.mu.Unlock()
		one := Session{PID: s.facts.PID, UID: s.facts.UID, Tenant: tenant, Hook: s.hook, Stale: state(s.state.Load()) == stale, Since: s.since}
		for _, t := range s.seats {
			if t != nil {
				one.GPUs = append(one.GPUs, SessionGPU{t.gpu.uuid, t.gpu.memory.Session(s.id)})
			}
		}
		all = append(all, one)
	}
	return all
}

// Notice has a line written into the logs of those of the processes that have
// a session; of a long one the beginning.
func (b *Broker) Notice(text string, pids ...int) {
	for _, s := range b.begun() {
		if slices.Contains(pids, s.facts.PID) {
			s.notice(text)
		}
	}
}
