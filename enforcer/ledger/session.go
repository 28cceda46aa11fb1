package ledger

import (
	"fmt"
	"math"
)

type session struct {
	name      string
	tenant    *tenant
	committed uint64
	reserved  uint64 // with what is in its lease
	lease     Lease  // nil where it is closed
	leased    uint64 // of reserved, what is in it
	early     uint64 // freed, though the COMMIT was not read yet
	claimed   uint64 // what it was adopted with, and did not free
	adopted   uint64 // of that, what is committed
	ended     bool
	next      uint64 // reservation, but for its slot
	taken     uint64 // slots, a bit each
	covered   uint64 // of them, those that what the tenant is guaranteed covers
	slots     [Reservations]struct{ reservation, bytes uint64 }
}

// open returns the session, which begins where there is none; nil where it has
// ended or is another tenant's.
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

// live returns the session that is there and has not ended.
func (l *Ledger) live(id uint64) (*session, error) {
	if s := l.sessions[id]; s != nil && !s.ended {
		return s, nil
	}
	return nil, fmt.Errorf("session %d: %w", id, ErrSession)
}

// Adopt takes note of what a session says that it had before the broker knew
// it. It is Listed that books it.
func (l *Ledger) Adopt(name string, id, bytes uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.open(name, id)
	if s == nil {
		return fmt.Errorf("session %d: %w", id, ErrSession)
	}
	if bytes > math.MaxUint64-max(s.tenant.used(), s.claimed) {
		return fmt.Errorf("adopt %d bytes: %w", bytes, ErrBytes)
	}
	s.claimed += bytes
	return nil
}

// Listed says how many bytes the driver lists for a process. No more of what
// its sessions were adopted with, or had when they ended, is booked, all together
// and those first that come first; that much is, whatever the cap says. What one
// that ended has becomes less, never more.
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
		*in += booked - s.adopted // which may be less than before
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

// Session returns the bytes that a session has, reserved ones included but for
// those in its lease; those of one that ended until it is released.
func (l *Ledger) Session(id uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sessions[id]; s != nil {
		l.look(s)
		return s.committed + s.reserved - s.leased
	}
	return 0
}

// give takes bytes that were freed out of the books, those first that the
// session was adopted with, and returns how many it had.
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

// End says that the session's process died or went. What it had stays charged
// to the tenant as dead, because the driver may not have it back yet; what was
// reserved too, because the driver may have given it already.
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
	l.changed(s.tenant)
}

// Release says that the driver has back what an ended session had. It returns
// the bytes that can be had again.
func (l *Ledger) Release(id uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[id]
	if s == nil || !s.ended {
		return 0
	}
	s.tenant.Dead -= s.committed + s.reserved
	l.changed(s.tenant)
	s.tenant.sessions--
	delete(l.sessions, id)
	l.forget(s.name)
	return s.committed + s.reserved
}

// Move makes the session another tenant's, with all that it has, whatever
// that one's cap says: a reloaded policy may do that.
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
		return fmt.Errorf("move session %d to %s: %w", id, name, ErrBytes)
	}
	from.Committed -= s.committed
	from.Reserved -= s.reserved
	from.sessions--
	to.Committed += s.committed
	to.Reserved += s.reserved
	to.sessions++
	l.changed(from)
	l.changed(to)
	s.covered = 0 // they were not asked of this one's guarantee
	was := s.name
	s.name, s.tenant = name, to
	l.forget(was)
	return nil
}
