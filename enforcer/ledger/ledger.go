// Package ledger keeps the books of one GPU's memory: what each tenant may
// have, what is promised, what is taken. It is pure: no clock, no input or
// output.
package ledger

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
)

// Reservations is how many reservations a session may have outstanding.
const Reservations = 64

// What a session may get wrong.
var (
	ErrSession     = errors.New("no such session")
	ErrReservation = errors.New("no such reservation")
	ErrBytes       = errors.New("more bytes than there are")
)

// A Ledger is the book of one GPU's memory. Bytes are reserved, and either
// committed or given back; committed, reserved and dead bytes of a tenant are
// never above its cap in sum, unless they were adopted or the cap was lowered
// under them: then nothing is admitted until they are below it again.
//
// The zero value is ready. All methods are safe for concurrent use, take
// constant time, and allocate only for a tenant or session that is new.
type Ledger struct {
	mu       sync.Mutex
	tenants  map[string]*tenant
	sessions map[uint64]*session
}

// Usage is what a tenant has, in bytes but for Denied.
type Usage struct {
	Committed uint64 // taken by sessions that live
	Reserved  uint64 // promised
	Dead      uint64 // of sessions that ended and may hold it still
	Cap       uint64 // 0: none
	Peak      uint64 // most that was taken at once, Dead included
	Denied    uint64 // reservations refused
}

type tenant struct {
	Usage
	sessions int
}

// free returns what the tenant may still have.
func (t *tenant) free() uint64 {
	limit, used := t.Cap, t.Committed+t.Reserved+t.Dead
	if limit == 0 {
		limit = math.MaxUint64
	}
	return limit - min(used, limit)
}

func (t *tenant) mark() { t.Peak = max(t.Peak, t.Committed+t.Dead) }

// tenant returns the tenant of that name, which it makes where there is none.
func (l *Ledger) tenant(name string) *tenant {
	t := l.tenants[name]
	if t == nil {
		if l.tenants == nil {
			l.tenants = map[string]*tenant{}
		}
		t = &tenant{}
		l.tenants[name] = t
	}
	return t
}

// SetCap says how many bytes the tenant may have; 0 is no cap. A tenant
// without one is forgotten when its last session is released.
func (l *Ledger) SetCap(name string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenant(name).Cap = bytes
	l.forget(name)
}

func (l *Ledger) forget(name string) {
	if t := l.tenants[name]; t != nil && t.Cap == 0 && t.sessions == 0 {
		delete(l.tenants, name)
	}
}

// Reserve promises bytes to a session of the tenant: the driver may be asked
// for them. It returns the reservation, never 0, and what is left; or false,
// and what could be had. A session belongs to the tenant that it first named.
func (l *Ledger) Reserve(name string, id, bytes uint64) (reservation uint64, ok bool, free uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.open(name, id)
	if s == nil {
		return 0, false, 0
	}
	free = s.tenant.free()
	if bytes > free || s.taken == math.MaxUint64 {
		s.tenant.Denied++
		return 0, false, free
	}
	i := bits.TrailingZeros64(^s.taken)
	s.next++
	s.taken |= 1 << i
	s.slots[i].reservation, s.slots[i].bytes = s.next*Reservations+uint64(i), bytes
	s.reserved += bytes
	s.tenant.Reserved += bytes
	return s.slots[i].reservation, true, free - bytes
}

// close ends a reservation and returns its bytes, if they are at least so many.
func (l *Ledger) close(id, reservation, least uint64) (*session, error) {
	s, err := l.live(id)
	if err != nil {
		return nil, err
	}
	i := reservation % Reservations
	slot := &s.slots[i]
	if s.taken&(1<<i) == 0 || slot.reservation != reservation {
		return nil, fmt.Errorf("reservation %d of session %d: %w", reservation, id, ErrReservation)
	}
	if least > slot.bytes {
		return nil, fmt.Errorf("commit %d of %d bytes: %w", least, slot.bytes, ErrBytes)
	}
	s.taken &^= 1 << i
	s.reserved -= slot.bytes
	s.tenant.Reserved -= slot.bytes
	return s, nil
}

// Commit says that the driver gave bytes of what was reserved; the rest is
// given back. With an error nothing changes: the reservation stays.
func (l *Ledger) Commit(id, reservation, actual uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.close(id, reservation, actual)
	if err != nil {
		return err
	}
	s.committed += actual
	s.tenant.Committed += actual
	s.tenant.mark()
	return nil
}

// Abort says that the driver gave nothing.
func (l *Ledger) Abort(id, reservation uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.close(id, reservation, 0)
	return err
}

// Free says that a session gave bytes back to the driver. Of more than it has
// all that it has is freed, with an error.
func (l *Ledger) Free(id, bytes uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.live(id)
	if err != nil {
		return err
	}
	n := min(bytes, s.committed)
	s.committed -= n
	s.tenant.Committed -= n
	if n < bytes {
		return fmt.Errorf("free %d of %d bytes: %w", bytes, n, ErrBytes)
	}
	return nil
}

// Usage returns what a tenant has; zero for one that is unknown.
func (l *Ledger) Usage(name string) Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tenants[name]; t != nil {
		return t.Usage
	}
	return Usage{}
}
