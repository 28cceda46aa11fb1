package ledger

import "slices"

// A Lease is memory that a session takes without asking, and returns when it
// frees. The session and the ledger change it concurrently.
type Lease interface {
	Idle() uint64     // bytes in it
	Add(bytes uint64) // opens it if it is closed
	Close() uint64    // takes everything out; from now on the session asks
}

// Bounds of leases.
const (
	Leases   = 64        // of a tenant, so that a look at all of them takes no time
	leaseMax = 256 << 20 // bytes, the most in one
	leasePer = 8         // a lease gets one in so many of the bytes that the tenant may still have
)

// Lend opens a session's lease, if its tenant may have another, and fills it:
// less near the cap, and nothing at the cap. Its bytes count as reserved until
// another reservation needs them.
func (l *Ledger) Lend(id uint64, lease Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.live(id)
	if err != nil || s.adopted != s.claimed { // unbooked bytes cannot be lent
		return
	}
	t := s.tenant
	switch {
	case s.lease != nil:
		l.look(s)
	case len(t.lessees) == Leases:
		return
	default:
		s.lease = lease
		t.lessees = append(t.lessees, s)
	}
	fill := min(l.free(t)/leasePer, leaseMax)
	more := fill - min(s.leased, fill)
	s.lease.Add(more)
	s.lend(more)
	l.changed(t)
}

// lend books bytes as the lease's.
func (s *session) lend(bytes uint64) {
	s.leased += bytes
	s.reserved += bytes
	s.tenant.Leased += bytes
	s.tenant.Reserved += bytes
}

// unlend takes bytes of the lease out of the books.
func (s *session) unlend(bytes uint64) {
	s.leased -= bytes
	s.reserved -= bytes
	s.tenant.Leased -= bytes
	s.tenant.Reserved -= bytes
}

// look records what a session took from its lease, or put there.
func (l *Ledger) look(s *session) {
	if s.lease != nil {
		l.found(s, s.lease.Idle())
	}
}

// found books the bytes found in a session's lease, at most those that the
// session has.
func (l *Ledger) found(s *session, idle uint64) {
	if idle > s.leased {
		s.lend(s.give(idle - s.leased))
	} else {
		taken := s.leased - idle
		s.unlend(taken)
		s.committed += taken
		s.tenant.Committed += taken
	}
	l.changed(s.tenant)
}

// recall closes a session's lease: its bytes return to the tenant.
func (l *Ledger) recall(s *session) {
	if s.lease == nil {
		return
	}
	idle := s.lease.Close()
	l.found(s, idle)
	// A commit and a free before the COMMIT is read appear too early.
	s.early = min(idle-min(idle, s.leased), s.reserved-s.leased)
	s.unlend(s.leased)
	s.lease = nil
	s.tenant.lessees = slices.DeleteFunc(s.tenant.lessees, func(o *session) bool { return o == s })
	l.changed(s.tenant)
}

func (l *Ledger) recallAll(t *tenant) {
	for _, s := range slices.Clone(t.lessees) {
		l.recall(s)
	}
}

// collect closes leases until the tenant can have so many bytes: first its own
// and, if that is too little, the others'.
func (l *Ledger) collect(t *tenant, bytes uint64) {
	fits := func(others uint64) bool {
		limit := l.limit(t, others)
		return bytes <= limit-min(t.used()-t.Leased, limit)
	}
	l.lookAll(t)
	others := l.claims - t.claim
	if fits(others) {
		l.recallAll(t)
		return
	}
	if !fits(0) {
		return
	}
	for _, o := range l.tenants {
		if o != t && len(o.lessees) > 0 {
			l.lookAll(o)
			others -= o.claim - o.claims(o.used()-o.Leased)
		}
	}
	if !fits(others) {
		return
	}
	for _, o := range l.tenants {
		l.recallAll(o)
	}
}

func (l *Ledger) lookAll(t *tenant) {
	for _, s := range t.lessees {
		l.look(s)
	}
}

// Failed takes back bytes that a session took from its lease and the driver
// refused. They return to the tenant.
func (l *Ledger) Failed(id, bytes uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.live(id)
	if err != nil {
		return err
	}
	l.look(s)
	if s.tenant.used() <= s.tenant.Guaranteed {
		s.tenant.Asked++
		s.tenant.Missed++
	}
	return l.giveBack(s, bytes)
}
