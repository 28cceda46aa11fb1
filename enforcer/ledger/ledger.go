// Package ledger keeps the books of one GPU's memory: caps, guarantees,
// reservations and use of the tenants. It is pure: no clock, no input or
// output.
package ledger

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
)

// reservations is how many reservations a session may have outstanding.
const reservations = 64

// Errors of a session.
var (
	errSession     = errors.New("no such session")
	errReservation = errors.New("no such reservation")
	errBytes       = errors.New("more bytes than there are")
)

// A Ledger is the books of one GPU's memory. Bytes are reserved, then committed
// or given back. The sum of a tenant's committed, reserved and dead bytes never
// exceeds its cap, unless they were adopted or the cap was lowered below them:
// then nothing is admitted until the sum is below the cap again.
//
// The unused part of a guarantee is kept for its tenant: a request beyond a
// tenant's own guarantee gets only what is left.
//
// The zero value is ready. All methods are safe for concurrent use, take
// constant time, and allocate only for a new tenant or session.
type Ledger struct {
	mu       sync.Mutex
	tenants  map[string]*tenant
	sessions map[uint64]*session
	capacity uint64 // 0: unknown
	claims   uint64 // the sum of all tenants'
}

// Usage is the use of a tenant, in bytes except for the counters.
type Usage struct {
	Committed  uint64 // taken by live sessions
	Reserved   uint64 // promised
	Leased     uint64 // part of Reserved that is idle in leases
	Dead       uint64 // of ended sessions, possibly still held
	Unlisted   uint64 // part of them all that the driver does not list: it has no claim
	Cap        uint64 // 0: none
	Guaranteed uint64 // kept for it
	Peak       uint64 // the most taken at once, including Dead
	Denied     uint64 // refused reservations
	Asked      uint64 // reservations within the guarantee
	Missed     uint64 // part of Asked that was refused, or given back because the driver had none
	Processes  uint32 // with or without memory
}

type tenant struct {
	Usage
	sessions int
	dying    uint64     // part of Dead that is expected back
	lessees  []*session // whose leases are open
	claim    uint64     // as in the ledger's sum
}

// mostBytes bounds a claim, so that no sum of claims overflows; no GPU has so
// much.
const mostBytes = 1 << 47

func (t *tenant) used() uint64 { return t.Committed + t.Reserved + t.Dead }

// lasting returns the bytes that the tenant has without those that can be had
// back: those in its leases, and those of the dead that are expected back.
func (t *tenant) lasting() uint64 { return t.used() - t.Leased - t.dying }

// lack returns why the tenant cannot have so many bytes.
func (l *Ledger) lack(t *tenant, bytes uint64, stays bool) Lack {
	var others, dying uint64
	for _, o := range l.tenants {
		dying += o.dying
		if o != t {
			others += o.claims(o.lasting())
		}
	}
	limit := l.limit(t, others)
	switch {
	case t.Cap != 0 && bytes > t.Cap-min(t.lasting(), t.Cap),
		stays && bytes > t.Guaranteed-min(t.lasting(), t.Guaranteed):
		return LacksCap
	case dying == 0 || bytes > limit-min(t.lasting(), limit):
		return LacksRoom
	}
	return LacksDying
}

// free returns what the tenant may still have: below its cap, and within its
// guarantee or what the others' claims leave of the capacity.
func (l *Ledger) free(t *tenant) uint64 {
	limit := l.limit(t, l.claims-t.claim)
	return limit - min(t.used(), limit)
}

// limit returns what the tenant may have beside the others' claims.
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

// claims returns the tenant's claims at this use.
func (t *tenant) claims(used uint64) uint64 {
	return min(max(used-min(t.Unlisted, used), t.Guaranteed), mostBytes)
}

// changed records what the tenant has and claims now: its use or its guarantee,
// whichever is more.
func (l *Ledger) changed(t *tenant) {
	t.Peak = max(t.Peak, t.Committed+t.Dead)
	claim := t.claims(t.used())
	l.claims += claim - t.claim
	t.claim = claim
}

// tenant returns the tenant of that name, and creates it if necessary.
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

// SetCap sets a tenant's cap in bytes; 0 is no cap. A tenant without cap and
// guarantee is forgotten when its last session is released.
func (l *Ledger) SetCap(name string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tenant(name)
	if t.Cap = bytes; bytes != 0 && t.used() > bytes {
		l.recallAll(t)
	}
	l.forget(name)
}

// SetReserved sets the bytes that are kept for a tenant, with or without a
// session; 0 is none.
func (l *Ledger) SetReserved(name string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tenant(name)
	t.Guaranteed = bytes
	l.changed(t)
	l.forget(name)
}

// SetUnlisted sets how many of a tenant's bytes the driver does not list. Others may
// have them, unless they are guaranteed.
func (l *Ledger) SetUnlisted(name string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tenants[name]; t != nil {
		t.Unlisted = bytes
		l.changed(t)
	}
}

// SetCapacity sets the bytes of the GPU that all tenants together can have,
// including what they have. 0 is unknown: then nothing is kept for anybody.
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

// Reserve promises bytes to a session of the tenant, which may then ask the
// driver for them. Leases in the way are closed. It returns the reservation,
// never 0, and what is left; or false, and what could be had. A session belongs
// to the tenant of its first call.
func (l *Ledger) Reserve(name string, id, bytes uint64) (reservation uint64, ok bool, free uint64) {
	return l.ReserveUnless(name, id, bytes, false, nil)
}

// A Lack is what a request lacks. Memory of ended sessions that is expected back
// counts only for LacksDying.
type Lack int

// The lacks.
const (
	LacksDying Lack = iota // nothing but that memory
	LacksRoom              // the GPU has too little
	LacksCap               // it is beyond its tenant's cap, or beyond what is guaranteed and stays
)

// ReserveUnless is Reserve, and does not count a refusal that is put off. If there is
// too little, later decides whether to put it off; later must not call the ledger, and
// nil puts nothing off. Memory that stays can never be reclaimed: it is granted only
// as far as it is guaranteed.
func (l *Ledger) ReserveUnless(name string, id, bytes uint64, stays bool, later func(Lack) bool) (reservation uint64,
	ok bool, free uint64) {
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
	if stays {
		free = min(free, t.Guaranteed-min(t.used()-t.Leased, t.Guaranteed))
	}
	if s.taken == math.MaxUint64 {
		t.Denied++
		return 0, false, free
	}
	if bytes > free && later != nil && later(l.lack(t, bytes, stays)) {
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
	s.slots[i].reservation, s.slots[i].bytes = s.next*reservations+uint64(i), bytes
	if s.covered &^= 1 << i; covered {
		s.covered |= 1 << i
	}
	s.reserved += bytes
	t.Reserved += bytes
	l.changed(t)
	return s.slots[i].reservation, true, free - bytes
}

// close ends a reservation, with this many bytes committed, and returns its
// tenant and whether a guarantee covered it.
func (l *Ledger) close(id, reservation, actual uint64) (t *tenant, covered bool, err error) {
	s, err := l.live(id)
	if err != nil {
		return nil, false, err
	}
	i := reservation % reservations
	slot := &s.slots[i]
	if s.taken&(1<<i) == 0 || slot.reservation != reservation {
		return nil, false, fmt.Errorf("reservation %d of session %d: %w", reservation, id, errReservation)
	}
	if actual > slot.bytes {
		return nil, false, fmt.Errorf("commit %d of %d bytes: %w", actual, slot.bytes, errBytes)
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

// Commit commits bytes that the driver gave; the rest of the reservation is
// given back. After an error the reservation is unchanged.
func (l *Ledger) Commit(id, reservation, actual uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _, err := l.close(id, reservation, actual)
	return err
}

// Abort ends a reservation for which the driver gave nothing.
func (l *Ledger) Abort(id, reservation uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, covered, err := l.close(id, reservation, 0)
	if covered {
		t.Missed++
	}
	return err
}

// Free frees bytes that a session gave back to the driver, adopted ones first.
// If the session has fewer, Free frees all of them and returns an error.
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
		return fmt.Errorf("free %d of %d bytes: %w", bytes, freed, errBytes)
	}
	return nil
}

// Usage returns the use of a tenant; zero for an unknown one.
func (l *Ledger) Usage(name string) Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tenants[name]; t != nil {
		l.lookAll(t)
		return t.Usage
	}
	return Usage{}
}
