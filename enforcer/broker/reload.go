package broker

import (
	"fmt"
	"slices"

	"gpusteward/internal/wire"
)

// A Policy assigns processes to tenants, and quotas to tenants. It may be
// called concurrently, must not block, and must not call the broker.
type Policy interface {
	// Tenant returns the tenant of a process. wished is the name that the
	// process asked for, or empty; an error refuses the process.
	Tenant(f Facts, wished string) (string, error)
	// Quota returns a tenant's present quota on the GPU of that UUID.
	Quota(tenant, gpu string) Quota
	// Tenants returns the names of all tenants, with or without a session:
	// memory may be kept for them. Any other tenant is forgotten with its last
	// session.
	Tenants() []string
}

// Reload replaces the policy and judges all sessions by it, as Refresh does.
func (b *Broker) Reload(p Policy) {
	b.policy.Store(&p)
	b.Refresh()
}

// Refresh judges all sessions again by the policy in force, and applies the
// present quotas: the identity of a process may become known late, and quotas
// change. No session is dropped, with one exception: a session ends if its GPU
// became known only now, so that the next one is governed there. A process that
// may no longer have the tenant it wished is treated as without a wish; if that
// is refused too, it keeps its tenant. Without changes nothing is written or
// sent. Refresh asks Options.Known, Options.Capacity and Options.Holds; call it
// each second.
func (b *Broker) Refresh() {
	b.reloads.Lock()
	defer b.reloads.Unlock()
	p := *b.policy.Load()
	b.gpus.giveUp()
	for _, s := range b.roll.begun() {
		s.reconsider(p)
		if b.gpus.misplaced(s) {
			s.hangUp()
		}
	}
	watch(b.roll.begun())
	b.recount()
	shared := b.gpus.list()
	weigh(b.roll.begun(), shared)
	for _, g := range shared {
		g.refresh(p)
		g.keep(p)
	}
}

// reload judges a session that began during a change of the policy.
func (b *Broker) reload(s *session) {
	b.reloads.Lock()
	defer b.reloads.Unlock()
	p := *b.policy.Load()
	s.reconsider(p)
	for _, t := range s.seats {
		if t != nil {
			t.gpu.refresh(p)
		}
	}
}

// reconsider assigns a session to its tenant by a policy. The broker's reloads
// are locked.
func (s *session) reconsider(p Policy) {
	tenant, err := p.Tenant(s.facts, s.wished)
	told := s.denied
	if s.denied = err != nil; s.denied {
		if !told {
			s.notice(fmt.Sprintf("the broker no longer grants the request for %q: %v", s.wished, err))
		}
		if tenant, err = p.Tenant(s.facts, ""); err != nil {
			return
		}
	}
	s.mu.Lock()
	old := s.tenant
	s.tenant = tenant
	for _, t := range s.seats {
		if t == nil || s.away || old == tenant {
			continue
		}
		t.gpu.memory.Leave(old)
		t.gpu.memory.Enter(tenant)
		if s.memory {
			if err := t.gpu.memory.Move(tenant, s.id); err != nil {
				s.b.log.Warn("memory not moved to another tenant", "pid", s.facts.PID, "err", err)
			}
		}
	}
	s.mu.Unlock()
	if old == tenant {
		return
	}
	for _, t := range s.seats {
		if t != nil {
			t.move(tenant, p.Quota(tenant, t.gpu.uuid))
		}
	}
	s.showMemory()
}

// move makes the seat another tenant's.
func (t *seat) move(tenant string, q Quota) {
	was := q
	t.gpu.do(func() {
		if t.party != nil { // otherwise it has left meanwhile
			was = t.party.quota
			t.gpu.leave(t)
			t.gpu.join(t, tenant, q)
		}
	})
	t.limit(was, q)
}

// limit tells the process if its tenant's cap changed.
func (t *seat) limit(was, is Quota) {
	if was.Memory != is.Memory {
		t.s.tell(wire.Header{Type: wire.TypeLimitsChanged}, &wire.Memory{GPU: uint32(t.index), Bytes: is.Memory})
	}
}

// refresh applies the present quotas of the tenants on the GPU. It asks the
// policy without the GPU's lock.
func (g *gpu) refresh(p Policy) {
	type terms struct {
		name    string
		was, is Quota
		seats   []*seat
	}
	var all []terms
	g.b.times.mu.Lock()
	for _, party := range g.parties {
		all = append(all, terms{name: party.name, was: party.quota})
	}
	g.b.times.mu.Unlock()
	for i := range all {
		all[i].is = p.Quota(all[i].name, g.uuid)
	}
	all = slices.DeleteFunc(all, func(t terms) bool { return t.is == t.was })
	if len(all) == 0 {
		return
	}
	g.do(func() {
		for i, t := range all {
			at := slices.IndexFunc(g.parties, func(p *party) bool { return p.name == t.name })
			if at >= 0 {
				all[i].was, all[i].seats = g.parties[at].quota, slices.Clone(g.parties[at].seats)
				g.change(g.parties[at], t.is)
			}
		}
	})
	for _, t := range all {
		for _, seat := range t.seats {
			seat.limit(t.was, t.is)
			if t.was.Memory != t.is.Memory {
				seat.showMemory(t.name)
			}
		}
	}
}

// keep tells the ledger the tenants' guarantees, with or without sessions, and
// the capacity. The broker's reloads are locked.
func (g *gpu) keep(p Policy) {
	kept := map[string]uint64{}
	names := p.Tenants()
	g.forget(names)
	for _, name := range names {
		if bytes := p.Quota(name, g.uuid).Reserved; bytes > 0 {
			kept[name] = bytes
		}
	}
	for name := range g.kept {
		if kept[name] == 0 {
			g.memory.SetReserved(name, 0)
		}
	}
	for name, bytes := range kept {
		if g.kept[name] != bytes {
			g.memory.SetReserved(name, bytes)
		}
	}
	g.kept = kept
	if capacity := g.b.options.Capacity; capacity != nil {
		g.memory.SetCapacity(capacity(g.uuid))
	}
}
