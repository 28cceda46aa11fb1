package broker

import (
	"cmp"
	"slices"

	"gpusteward/enforcer/wire"
)

// mostBytes is more memory than a GPU has: nobody resumes with more.
const mostBytes = 1 << 44

// reserve answers on the connection's goroutine: the ledger has its own lock
// and takes no time.
func (s *session) reserve(fd int, m *mail, h wire.Header, payload []byte) *refusal {
	var ask wire.Memory
	ask.Decode(payload)
	t, r := s.seat(ask.GPU)
	if r != nil {
		return r
	}
	began := s.b.clock.now()
	answer, result := wire.TypeGrant, ok
	switch {
	case t == nil && s.b.options.FailClosed:
		answer, result, ask.Bytes = wire.TypeDeny, denied, 0
	case t != nil:
		s.mu.Lock()
		reservation, granted, free := t.gpu.memory.Reserve(s.tenant, s.id, ask.Bytes)
		s.memory = true
		s.mu.Unlock()
		if granted && s.leases != nil && ask.Bytes <= wire.LeaseMax {
			t.gpu.memory.Lend(s.id, s.leases.At(t.index))
		}
		if !granted && free >= ask.Bytes && free > 0 {
			return refusedMany
		}
		if ask.Reservation = reservation; !granted {
			answer, result, ask.Bytes = wire.TypeDeny, denied, free
		}
	}
	s.fault = send(fd, ask.Append(wire.Header{Type: answer, Seq: h.Seq, Session: s.id}.Append(m.out[:0])))
	s.b.counters.count(h.Type, result)
	s.b.counters.admission.observe(s.b.clock.now() - began)
	return nil
}

// book notes in the ledger what a process did with memory: COMMIT, ABORT and
// FREE. Only what is wrong with it is answered.
func (s *session) book(_ int, _ *mail, h wire.Header, payload []byte) *refusal {
	var m wire.Memory
	m.Decode(payload)
	t, r := s.seat(m.GPU)
	if r != nil || t == nil {
		return r
	}
	var err error
	switch memory := t.gpu.memory; {
	case h.Type == wire.TypeCommit:
		err = memory.Commit(s.id, m.Reservation, m.Bytes)
	case h.Type == wire.TypeAbort && m.Reservation != 0:
		err = memory.Abort(s.id, m.Reservation)
	case h.Type == wire.TypeAbort:
		err = memory.Failed(s.id, m.Bytes)
	default:
		err = memory.Free(s.id, m.Bytes)
	}
	if err != nil {
		return &refusal{wire.CodeState, err.Error(), false}
	}
	s.b.counters.count(h.Type, ok)
	s.mu.Lock()
	name := s.tenant
	s.mu.Unlock()
	t.showMemory(name)
	return nil
}

// showMemory writes what the session's tenant has on each GPU into the page.
// Who takes memory does it at once for its own page; the others of its tenant
// see it with the next heartbeat.
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
	t.s.page.setMemory(t.index, u.Committed+u.Reserved-u.Leased+u.Dead, u.Cap)
}

// listed returns how many bytes the driver lists for a process: where that is
// not known, what there is for all.
func (g *gpu) listed(pid int) uint64 {
	if holds := g.b.options.Holds; holds != nil {
		if bytes, known, _ := holds(g.uuid, pid); known {
			return bytes
		}
	}
	if room := g.b.options.Room; room != nil {
		return cmp.Or(room(g.uuid), mostBytes)
	}
	return mostBytes
}

// recount books what sessions had before, as far as the driver lists it now for
// their processes: of several of one process the latest first.
func (b *Broker) recount() {
	type holder struct {
		gpu *gpu
		pid int
	}
	resumed := map[holder][]uint64{}
	b.mu.Lock()
	for _, s := range b.sessions {
		if !s.resumed {
			continue
		}
		for _, t := range s.seats {
			if t != nil {
				h := holder{t.gpu, s.facts.PID}
				resumed[h] = append(resumed[h], s.id)
			}
		}
	}
	b.mu.Unlock()
	for h, ids := range resumed {
		slices.SortFunc(ids, func(x, y uint64) int { return cmp.Compare(y, x) })
		h.gpu.memory.Listed(h.gpu.listed(h.pid), slices.Compact(ids)...)
	}
}
