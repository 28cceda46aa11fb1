package ledger

import "slices"

// A Lease is where a session takes bytes without asking, and puts those that
// it frees. The session and the ledger change it at any time, and at once.
type Lease interface {
	Idle() uint64     // bytes that are in it
	Add(bytes uint64) // opens it where it is closed
	Close() uint64    // takes all out; from now on the session asks
}

// What leases there are.
const (
	Leases   = 64        // most of a tenant, so that looking at all of them takes no time
	leaseMax = 256 << 20 // bytes, most that is put into one
	leasePer = 8         // of what the tenant may still have, one in so many is put into it
)

// Lend opens a session's lease, if its tenant may have one more, and fills it:
// the less the nearer the cap is, and with nothing at the cap. What is in it
// counts as reserved, until another's reservation needs it.
func (l *Ledger) Lend(id uint64, lease Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.live(id)
	if err != nil || s.adopted != s.claimed { // what is not booked cannot be lent
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

// lend books bytes as those of the lease.
func (s *session) lend(bytes uint64) {
	s.leased += bytes
	s.reserved += bytes
	s.tenant.Leased += bytes
	s.tenant.Reserved += bytes
}

// unlend takes them out of the books.
func (s *session) unlend(bytes uint64) {
	s.leased -= bytes
	s.reserved -= bytes
	s.tenant.Leased -= bytes
	s.tenant.Reserved -= bytes
}

// look takes note of what a session took from its lease, or put there.
func (l *Ledger) look(s *session) {
	if s.lease != nil {
		l.found(s, s.lease.Idle())
	}
}

// found books what is in a session's lease. More than the session has cannot be.
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

// recall closes a session's lease: what was in it is the tenant's again.
func (l *Ledger) recall(s *session) {
	if s.lease == nil {
		return
	}
	idle := s.lease.Close()
	l.found(s, idle)
	// What is committed and freed before the COMMIT is read is found too early.
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

// collect closes leases, if that leaves the tenant so many bytes: its own, and
// where that is too little the others'.
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

// Failed says that the driver did not give bytes that a session took from its
// lease. They are the tenant's again.
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
