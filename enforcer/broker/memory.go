package broker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gpusteward/enforcer/ledger"
	"gpusteward/internal/wire"
)

// mostBytes is more memory than any GPU has, and bounds a resume.
const mostBytes = 1 << 44

// reserve answers on the connection's goroutine: the ledger has its own lock
// and takes no time. An allocation that must be asked for again leaves no record.
func (x message) reserve() *refusal {
	var ask wire.Memory
	ask.Decode(x.payload)
	waited := time.Duration(ask.Wait) * time.Millisecond
	ask.Wait = 0
	t, r := x.seat(ask.GPU)
	if r != nil {
		return r
	}
	began := x.b.clock.now()
	answer, result := wire.TypeGrant, ok
	x.lacks = ""
	switch {
	case t == nil && x.b.options.FailClosed:
		answer, result, ask.Bytes, x.lacks = wire.TypeDeny, denied, 0, "denied"
	case t != nil:
		reservation, granted, free, asked := x.admit(t, waited, &ask)
		if granted && x.b.options.Granted != nil {
			x.b.options.Granted(asked)
		}
		if granted && x.leases != nil && ask.Bytes <= wire.LeaseMax && !x.stays(t, ask.Kind) {
			t.gpu.memory.Lend(x.id, x.leases.At(t.index))
		}
		if !granted && free >= ask.Bytes && free > 0 {
			return refusedMany
		}
		if ask.Reservation = reservation; !granted {
			answer, result, ask.Bytes, x.lacks = wire.TypeDeny, denied, free, "denied"
		}
		if ask.Wait > 0 {
			x.lacks = "later"
		}
	}
	x.fault = send(x.fd, ask.Append(x.answer(answer)))
	x.b.counters.count(x.Type, result)
	x.b.counters.admission.observe(x.b.clock.now() - began)
	return nil
}

// admit asks the ledger for what a session wants, and sets after how many
// milliseconds it should ask again, if so. A process that has just ended may not
// be in the books as dead yet: before a refusal is final they are brought up to date.
func (s *session) admit(t *seat, waited time.Duration, ask *wire.Memory) (reservation uint64, granted bool, free uint64,
	asked Request) {
	stays := s.stays(t, ask.Kind)
	old := true
	for again := true; again; {
		again = false
		s.mu.Lock()
		s.memory = true
		asked = s.request(t, ask.Bytes)
		reservation, granted, free = t.gpu.memory.ReserveUnless(s.tenant, s.id, ask.Bytes, stays, func(lacks ledger.Lack) bool {
			switch {
			case lacks == ledger.LacksDying && waited < 2*s.b.timing.release: // a release may be late
				ask.Wait = uint32(s.b.timing.again.Milliseconds())
			case old:
				again = true
			case lacks != ledger.LacksCap:
				ask.Wait = s.b.options.later(asked)
			}
			return again || ask.Wait > 0
		})
		s.mu.Unlock()
		if old = false; again {
			s.b.exits.look(s.b.exited)
		}
	}
	return reservation, granted, free, asked
}

// stays reports whether memory that a session asks for can never give way to others.
func (s *session) stays(t *seat, kind wire.Kind) bool {
	return s.b.options.Stays != nil && s.b.options.Stays(t.gpu.uuid, s.facts.PID, kind)
}

// request returns what a session asks for. s.mu is locked.
func (s *session) request(t *seat, bytes uint64) Request {
	return Request{PID: s.facts.PID, Tenant: s.tenant, GPU: t.gpu.uuid, Bytes: bytes}
}

// later returns the milliseconds after which an allocation for which there is no
// room should be asked for again; 0: it fails.
func (o *Options) later(r Request) uint32 {
	if o.Later == nil {
		return 0
	}
	return uint32(o.Later(r).Milliseconds())
}

// book records what a process did with memory: COMMIT, ABORT and FREE. Only
// errors are answered.
func (x message) book() *refusal {
	var m wire.Memory
	m.Decode(x.payload)
	t, r := x.seat(m.GPU)
	if r != nil || t == nil {
		return r
	}
	var err error
	switch memory := t.gpu.memory; {
	case x.Type == wire.TypeCommit:
		err = memory.Commit(x.id, m.Reservation, m.Bytes)
	case x.Type == wire.TypeAbort && m.Reservation != 0:
		err = memory.Abort(x.id, m.Reservation)
	case x.Type == wire.TypeAbort:
		err = memory.Failed(x.id, m.Bytes)
	default:
		err = memory.Free(x.id, m.Bytes)
	}
	if err != nil {
		return &refusal{wire.CodeState, err.Error(), false}
	}
	x.b.counters.count(x.Type, ok)
	x.mu.Lock()
	name := x.tenant
	x.mu.Unlock()
	t.showMemory(name)
	return nil
}

// showMemory writes the memory of the session's tenant on each GPU into the
// page. A session that takes memory updates its own page at once; the others of
// its tenant follow with the next heartbeat.
func (s *session) showMemory() {
	s.mu.Lock()
	name := s.tenant
	s.mu.Unlock()
	for _, t := range s.seats {
		if t != nil {
			t.showMemory(name)
		}
	}
}

func (t *seat) showMemory(tenant string) {
	u := t.gpu.memory.Usage(tenant)
	t.s.page.setMemory(t.index, u.Committed+u.Reserved-u.Leased+u.Dead, u.Cap, u.Processes)
}

// listed returns the bytes that the driver lists for a process, and when it was
// asked; if that is unknown, all of the GPU's memory and the zero time.
func (o *Options) listed(uuid string, pid int) (bytes uint64, at time.Time) {
	if o.Holds != nil {
		if bytes, at, _ := o.Holds(uuid, pid); !at.IsZero() {
			return bytes, at
		}
	}
	if o.Capacity != nil {
		return cmp.Or(o.Capacity(uuid), mostBytes), at
	}
	return mostBytes, at
}

// An absence is how many of a tenant's bytes the driver does not list: the least of
// some listings, because memory is booked before it is taken.
type absence struct {
	least, before uint64        // of the listings since, and of those before
	since         time.Duration // clock
	listings      int
}

// note takes what a listing shows.
func (a *absence) note(bytes uint64, now, window time.Duration) {
	switch {
	case a.listings == 0:
		a.least, a.since = bytes, now
	case now-a.since > window && a.listings > 2:
		a.before, a.least, a.since, a.listings = min(a.least, bytes), bytes, now, 0
	}
	a.least = min(a.least, bytes)
	a.listings++
}

// weigh takes what a listing of the driver lacks of each tenant's memory; a zero time: there
// is no listing of any of them.
func (g *gpu) weigh(missing map[string]uint64, at time.Time) {
	if !at.IsZero() && !at.After(g.weighed) {
		return
	}
	g.weighed = at
	for name := range missing {
		if g.absent[name] == nil {
			g.absent[name] = &absence{}
		}
	}
	for name, a := range g.absent {
		if a.note(missing[name], g.b.clock.now(), g.b.timing.unlisted); at.IsZero() {
			*a = absence{}
		}
		g.memory.SetUnlisted(name, min(a.least, a.before))
		if a.least == 0 && a.before == 0 && missing[name] == 0 {
			delete(g.absent, name)
		}
	}
}

// needs are the bytes that the driver itself needs for a process: those that it
// lists beyond the books. A listing from before the books' last change counts
// only until there is a better one.
type needs struct {
	bytes  uint64
	sure   bool      // the books did not change from before the listing until after it
	booked uint64    // the books when they were last seen to change
	since  time.Time // when that was
}

// compare compares the books of a session with the driver's listing, if the
// process has no other session.
func (t *seat) compare(last bool) {
	bytes, at := t.s.b.options.listed(t.gpu.uuid, t.s.facts.PID)
	books, n := t.gpu.memory.Session(t.s.id), &t.needs
	t.s.b.roll.mu.Lock()
	defer t.s.b.roll.mu.Unlock()
	if at.IsZero() || t.s.caller.sessions > 1 || last && n.sure { // the driver may list the next program at last
		return
	}
	// Books of all that the driver lists tell nothing: recount cut them down to that.
	sure := books == n.booked && !n.since.IsZero() && at.After(n.since) && bytes > books
	if sure || !n.sure {
		n.bytes, n.sure = bytes-min(bytes, books), sure
	}
	if books != n.booked || n.since.IsZero() {
		n.booked, n.since = books, time.Now()
	}
}

// inherit takes over what is known of the driver's needs for a process from its session before
// this one. The roll's mutex is held.
func (s *session) inherit(before *session) {
	for _, t := range s.seats {
		for _, was := range before.seats {
			if t != nil && was != nil && t.gpu == was.gpu && was.needs.sure {
				t.needs = was.needs
			}
		}
	}
}

// abandon records that a session ended and its process did not: the process
// began another program, or closed the descriptor. From now on the driver's
// listing decides, less what the driver itself needs for a process. What it lists
// after the time for which the dead are charged is not expected back.
func (b *Broker) abandon(s *session) {
	for _, t := range s.seats {
		if t != nil {
			t.compare(true)
		}
	}
	b.roll.mu.Lock()
	defer b.roll.mu.Unlock()
	s.left = time.Now()
	b.parted.Store(int64(b.clock.now()))
	time.AfterFunc(b.timing.release, func() {
		for _, t := range s.seats {
			if t != nil {
				t.gpu.memory.Stay(s.id)
			}
		}
	})
}

// weigh reports to the ledgers how much of the memory that living processes have booked the
// driver does not list. It adds up by tenant: it does not matter which of a tenant's processes
// booked the memory, nor for how long. The broker's reloads are locked.
func weigh(begun []*session, shared []*gpu) {
	type process struct {
		gpu *gpu
		pid int
	}
	books := map[process]map[string]uint64{} // by tenant
	for _, s := range begun {
		s.mu.Lock()
		name, memory := s.tenant, s.memory && !s.away
		s.mu.Unlock()
		for _, t := range s.seats {
			if t != nil && memory {
				p := process{t.gpu, s.facts.PID}
				if books[p] == nil {
					books[p] = map[string]uint64{}
				}
				books[p][name] += t.gpu.memory.Session(s.id)
			}
		}
	}
	missing, at := map[*gpu]map[string]uint64{}, map[*gpu]time.Time{}
	for p, all := range books {
		listed, when := p.gpu.b.options.listed(p.gpu.uuid, p.pid)
		if missing[p.gpu] == nil {
			missing[p.gpu] = map[string]uint64{}
		}
		if when.IsZero() {
			continue // it is not known
		}
		if when.After(at[p.gpu]) {
			at[p.gpu] = when
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			has := min(all[name], listed)
			listed -= has
			missing[p.gpu][name] += all[name] - has
		}
	}
	for _, g := range shared {
		g.weigh(missing[g], at[g])
	}
}

// watch compares the books of all sessions that may have memory with the
// driver's listing.
func watch(begun []*session) {
	for _, s := range begun {
		s.mu.Lock()
		memory := s.memory && !s.away
		s.mu.Unlock()
		for _, t := range s.seats {
			if t != nil && memory {
				t.compare(false)
			}
		}
	}
}

// recount books the memory of resumed sessions, and of sessions that left a
// living process, as far as the driver lists it for the process now. Of several
// sessions of a process the latest comes first. It returns the sessions that left and have no memory
// any more.
func (r *roll) recount() []*session {
	type holder struct {
		gpu *gpu
		pid int
	}
	type place struct { // of a session, as it was under the mutex
		id, needs uint64
		left      time.Time
	}
	had := map[holder][]place{}
	left := map[int]bool{} // by process
	var gone []*session
	r.mu.Lock()
	for _, s := range r.sessions {
		if !s.left.IsZero() && !s.exited {
			left[s.facts.PID] = true
			gone = append(gone, s)
		}
	}
	for _, s := range r.sessions {
		if state(s.state.Load()) < authenticated {
			continue // it is taking its seats now; the next recount sees them
		}
		for _, t := range s.seats {
			if t != nil && (s.resumed || left[s.facts.PID]) {
				h := holder{t.gpu, s.facts.PID}
				had[h] = append(had[h], place{s.id, t.needs.bytes, s.left})
			}
		}
	}
	r.mu.Unlock()
	for h, places := range had {
		slices.SortFunc(places, func(x, y place) int { return cmp.Compare(y.id, x.id) })
		bytes, at := r.options.listed(h.gpu.uuid, h.pid)
		needed, ids := uint64(0), []uint64(nil)
		for _, p := range places {
			switch {
			case p.left.IsZero():
				ids = append(ids, p.id)
			case at.After(p.left): // otherwise the driver was asked before
				needed, ids = max(needed, p.needs), append(ids, p.id)
			}
		}
		h.gpu.memory.Listed(bytes-min(bytes, needed), ids...)
	}
	return slices.DeleteFunc(gone, func(s *session) bool {
		return slices.ContainsFunc(s.seats, func(t *seat) bool { return t != nil && t.gpu.memory.Session(s.id) > 0 })
	})
}

// recount releases what nobody has any more. The broker's reloads are locked.
func (b *Broker) recount() {
	for _, s := range b.roll.recount() {
		b.release(s, 0)
	}
}

// recountParted is recount, while a process that began another program may wait
// for the memory of its last one.
func (b *Broker) recountParted(now time.Duration) {
	if at := time.Duration(b.parted.Load()); at == 0 || now-at > b.timing.release || !b.reloads.TryLock() {
		return // or Refresh does it now
	}
	defer b.reloads.Unlock()
	b.recount()
}
