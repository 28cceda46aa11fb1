// Package ledger keeps the books of one GPU's memory: what each tenant may
// have, what is kept for it, what is promised, what is taken. It is pure: no
// clock, no input or output.
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
// Of the capacity, what a tenant is guaranteed and does not use is kept for it:
// who asks for more than its own guarantee gets it only from what is left.
//
// The zero value is ready. All methods are safe for concurrent use, take
// constant time, and allocate only for a tenant or session that is new.
type Ledger struct {
	mu       sync.Mutex
	tenants  map[string]*tenant
	sessions map[uint64]*session
	capacity uint64 // 0: unknown
	claims   uint64 // the sum of all tenants'
}

// Usage is what a tenant has, in bytes but for the counters.
type Usage struct {
	Committed  uint64 // taken by sessions that live
	Reserved   uint64 // promised
	Leased     uint64 // of Reserved, what is idle in leases
	Dead       uint64 // of sessions that ended and may hold it still
	Cap        uint64 // 0: none
	Guaranteed uint64 // kept for it
	Peak       uint64 // most that was seen taken at once, Dead included
	Denied     uint64 // reservations refused
	Asked      uint64 // reservations that what it is guaranteed covers
	Missed     uint64 // of them, those that were refused, or given back because the driver had none
	Processes  uint32 // that are there, with memory or without
}

type tenant struct {
	Usage
	sessions int
	lessees  []*session // whose leases are open
	claim    uint64     // as it is in the ledger's sum
}

// mostBytes bounds a claim, so that no sum of claims overflows: it is more than
// a GPU has.
const mostBytes = 1 << 47

func (t *tenant) used() uint64 { return t.Committed + t.Reserved + t.Dead }

// free returns what the tenant may still have: below its cap, and within what
// it is guaranteed or what the others' claims leave of the capacity.
func (l *Ledger) free(t *tenant) uint64 {
	limit := l.limit(t, l.claims-t.claim)
	return limit - min(t.used(), limit)
}

// limit returns what the tenant may have beside what others claim.
func (l *Ledger) limit(t *tenant, others uint64) uint64 {
	limit := t.Cap
	if limit == 0 {
		limit = math.MaxUint64
	}
	if l.capacity != 0 {
		limit = min(limit, max(t.Guaranteed, l.capacity-min(others, l.capacity)))
	}
	return limit
}

// claims returns what the tenant claims while it uses so much.
func (t *tenant) claims(used uint64) uint64 { return min(max(used, t.Guaranteed), mostBytes) }

// changed takes note of what the tenant has now, and claims: what it uses, or
// what it is guaranteed where that is more.
func (l *Ledger) changed(t *tenant) {
	t.Peak = max(t.Peak, t.Committed+t.Dead)
	claim := t.claims(t.used())
	l.claims += claim - t.claim
	t.claim = claim
}

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
// without one that is guaranteed nothing is forgotten when its last session is
// released.
func (l *Ledger) SetCap(name string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tenant(name)
	if t.Cap = bytes; bytes != 0 && t.used() > bytes {
		l.recallAll(t)
	}
	l.forget(name)
}

// SetReserved says how many bytes are kept for the tenant, whether it has a
// session or not; 0 is none.
func (l *Ledger) SetReserved(name string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tenant(name)
	t.Guaranteed = bytes
	l.changed(t)
	l.forget(name)
}

// SetCapacity says how many bytes of the GPU all tenants together can have,
// those that they have included. 0 is unknown: then nothing is kept for
// anybody.
func (l *Ledger) SetCapacity(bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.capacity = bytes
}

// Enter and Leave count a tenant's processes.
func (l *Ledger) Enter(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenant(name).Processes++
}

// Leave undoes an Enter.
func (l *Ledger) Leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenant(name).Processes--
	l.forget(name)
}

func (l *Ledger) forget(name string) {
	if t := l.tenants[name]; t != nil && t.Cap == 0 && t.Guaranteed == 0 && t.sessions == 0 && t.Processes == 0 {
		delete(l.tenants, name)
	}
}

// Reserve promises bytes to a session of the tenant: the driver may be asked
// for them. Leases that are in the way are closed. It returns the reservation,
// never 0, and what is left; or false, and what could be had. A session belongs to the tenant that it first named.
func (l *Ledger) Reserve(name string, id, bytes uint64) (reservation uint64, ok bool, free uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.open(name, id)
	if s == nil {
		return 0, false, 0
	}
	t := s.tenant
	l.look(s)
	if free = l.free(t); bytes > free {
		l.collect(t, bytes)
		free = l.free(t)
	}
	if s.taken == math.MaxUint64 {
		t.Denied++
		return 0, false, free
	}
	covered := bytes > 0 && bytes <= t.Guaranteed-min(t.used(), t.Guaranteed)
	if covered {
		t.Asked++
	}
	if bytes > free {
		t.Denied++
		if covered {
			t.Missed++
		}
		return 0, false, free
	}
	i := bits.TrailingZeros64(^s.taken)
	s.next++
	s.taken |= 1 << i
	s.slots[i].reservation, s.slots[i].bytes = s.next*Reservations+uint64(i), bytes
	if s.covered &^= 1 << i; covered {
		s.covered |= 1 << i
	}
	s.reserved += bytes
	t.Reserved += bytes
	l.changed(t)
	return s.slots[i].reservation, true, free - bytes
}

// close ends a reservation, of which so many bytes are committed, if it has
// them, and says whose it was and whether a guarantee covered it.
func (l *Ledger) close(id, reservation, actual uint64) (t *tenant, covered bool, err error) {
	s, err := l.live(id)
	if err != nil {
		return nil, false, err
	}
	i := reservation % Reservations
	slot := &s.slots[i]
	if s.taken&(1<<i) == 0 || slot.reservation != reservation {
		return nil, false, fmt.Errorf("reservation %d of session %d: %w", reservation, id, ErrReservation)
	}
	if actual > slot.bytes {
		return nil, false, fmt.Errorf("commit %d of %d bytes: %w", actual, slot.bytes, ErrBytes)
	}
	t = s.tenant
	s.taken &^= 1 << i
	s.reserved -= slot.bytes
	t.Reserved -= slot.bytes
	s.committed += actual
	t.Committed += actual
	s.early = min(s.early-s.give(min(s.early, actual)), s.reserved-s.leased)
	l.changed(t)
	return t, s.covered&(1<<i) != 0, nil
}

// Commit says that the driver gave bytes of what was reserved; the rest is
// given back. With an error nothing changes: the reservation stays.
func (l *Ledger) Commit(id, reservation, actual uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _, err := l.close(id, reservation, actual)
	return err
}

// Abort says that the driver gave nothing.
func (l *Ledger) Abort(id, reservation uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, covered, err := l.close(id, reservation, 0)
	if covered {
		t.Missed++
	}
	return err
}

// Free says that a session gave bytes back to the driver, those first that it
// was adopted with. Of more than it has all that it has is freed, with an error.
func (l *Ledger) Free(id, bytes uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.live(id)
	if err != nil {
		return err
	}
	l.look(s)
	return l.giveBack(s, bytes)
}

func (l *Ledger) giveBack(s *session, bytes uint64) error {
	freed := s.give(bytes)
	l.changed(s.tenant)
	if freed < bytes {
		return fmt.Errorf("free %d of %d bytes: %w", bytes, freed, ErrBytes)
	}
	return nil
}

// Usage returns what a tenant has; zero for one that is unknown.
func (l *Ledger) Usage(name string) Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tenants[name]; t != nil {
		l.lookAll(t)
		return t.Usage
	}
	return Usage{}
}
