package ledger

import (
	"fmt"
	"math"
)

type session struct {
	name      string
	tenant    *tenant
	committed uint64
	reserved  uint64 // including its lease
	lease     Lease  // nil while it is closed
	leased    uint64 // part of reserved in the lease
	early     uint64 // freed before the COMMIT was read
	claimed   uint64 // adopted and not freed
	adopted   uint64 // part of claimed that is committed
	ended     bool
	dying     bool   // it has ended, and its memory is expected back
	next      uint64 // reservation, but for its slot
	taken     uint64 // slots, a bit each
	covered   uint64 // taken slots that the tenant's guarantee covers
	slots     [reservations]struct{ reservation, bytes uint64 }
}

// open returns the session, and begins it if necessary; nil if it has ended or
// is another tenant's.
func (l *Ledger) open(name string, id uint64) *session {
	s := l.sessions[id]
	if s == nil {
		if l.sessions == nil {
			l.sessions = map[uint64]*session{}
		}
		s = &session{name: name, tenant: l.tenant(name)}
		s.tenant.sessions++
		l.sessions[id] = s
	}
	if s.ended || s.name != name {
		return nil
	}
	return s
}

// live returns a session that exists and has not ended.
func (l *Ledger) live(id uint64) (*session, error) {
	if s := l.sessions[id]; s != nil && !s.ended {
		return s, nil
	}
	return nil, fmt.Errorf("session %d: %w", id, errSession)
}

// Adopt records the memory that a session claims to have had before the broker
// knew it. Listed books it.
func (l *Ledger) Adopt(name string, id, bytes uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.open(name, id)
	if s == nil {
		return fmt.Errorf("session %d: %w", id, errSession)
	}
	if bytes > math.MaxUint64-max(s.tenant.used(), s.claimed) {
		return fmt.Errorf("adopt %d bytes: %w", bytes, errBytes)
	}
	s.claimed += bytes
	return nil
}

// Listed takes the bytes that the driver lists for a process, and books the
// adopted memory of its sessions and that of its ended sessions up to this sum,
// in the order given, regardless of the cap. The memory of an ended session
// only shrinks.
func (l *Ledger) Listed(bytes uint64, ids ...uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		s := l.sessions[id]
		if s == nil {
			continue
		}
		l.look(s)
		t := s.tenant
		booked := min(s.claimed, bytes, math.MaxUint64-(t.used()-s.adopted))
		in := &t.Committed
		if s.ended {
			in = &t.Dead
		}
		*in += booked - s.adopted // possibly less than before
		if s.dying {
			t.dying += booked - s.adopted
		}
		s.committed += booked - s.adopted
		if s.adopted = booked; s.ended {
			s.claimed = booked
		}
		bytes -= min(bytes, s.committed+s.reserved-s.leased)
		l.changed(t)
		if s.adopted < s.claimed {
			l.recall(s)
		}
	}
}

// Session returns a session's bytes, including reserved ones but not those in
// its lease; an ended session has its bytes until it is released.
func (l *Ledger) Session(id uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sessions[id]; s != nil {
		l.look(s)
		return s.committed + s.reserved - s.leased
	}
	return 0
}

// give takes freed bytes out of the books, adopted ones first, and returns how
// many the session had.
func (s *session) give(bytes uint64) uint64 {
	claimed := min(bytes, s.claimed)
	s.claimed -= claimed
	adopted := s.adopted - min(s.adopted, s.claimed)
	s.adopted -= adopted
	own := min(bytes-claimed, s.committed-adopted)
	s.committed -= adopted + own
	s.tenant.Committed -= adopted + own
	return claimed + own
}

// End ends the session of a process that died or left. Its memory stays charged
// to the tenant as dead, because the driver may not have it back yet; its
// reservations too, because the driver may have filled them. It is expected back
// until Stay.
func (l *Ledger) End(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.live(id)
	if err != nil {
		return
	}
	l.recall(s)
	s.ended = true
	s.tenant.Committed -= s.committed
	s.tenant.Reserved -= s.reserved
	s.claimed += s.committed - s.adopted + s.reserved
	s.committed += s.reserved
	s.reserved, s.adopted = 0, s.committed
	s.tenant.Dead += s.committed
	s.dying = true
	s.tenant.dying += s.committed
	l.changed(s.tenant)
}

// Stay records that the memory of an ended session is not expected back any
// more, as of a process that left and lives.
func (l *Ledger) Stay(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sessions[id]; s != nil && s.dying {
		s.dying = false
		s.tenant.dying -= s.committed
	}
}

// Release takes the memory of an ended session out of the books, once the
// driver has it back, and returns the bytes.
func (l *Ledger) Release(id uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[id]
	if s == nil || !s.ended {
		return 0
	}
	s.tenant.Dead -= s.committed
	if s.dying {
		s.tenant.dying -= s.committed
	}
	l.changed(s.tenant)
	s.tenant.sessions--
	delete(l.sessions, id)
	l.forget(s.name)
	return s.committed
}

// Move moves the session with all its memory to another tenant, regardless of
// the cap: a reloaded policy may do that.
func (l *Ledger) Move(name string, id uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.live(id)
	if err != nil {
		return err
	}
	l.recall(s)
	to, from := l.tenant(name), s.tenant
	if s.committed+s.reserved > math.MaxUint64-to.Committed-to.Reserved-to.Dead {
		l.forget(name)
		return fmt.Errorf("move session %d to %s: %w", id, name, errBytes)
	}
	from.Committed -= s.committed
	from.Reserved -= s.reserved
	from.sessions--
	to.Committed += s.committed
	to.Reserved += s.reserved
	to.sessions++
	l.changed(from)
	l.changed(to)
	s.covered = 0 // they were not asked of the new tenant's guarantee
	was := s.name
	s.name, s.tenant = name, to
	l.forget(was)
	return nil
}
