package broker

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/wire"
)

// mostBytes is more memory than a GPU has: nobody resumes with more.
const mostBytes = 1 << 44

// hello opens a session: HELLO, or RESUME with what a session before had.
func (s *session) hello(fd int, m *mail, h wire.Header, payload []byte) *refusal {
	var hello wire.Hello
	hello.Decode(payload)
	if err := s.b.complete(s); err != nil {
		return refuse(wire.CodeDenied, err)
	}
	s.wished, s.cuda, s.hook = wire.Text(hello.Tenant[:]), hello.CUDA, printable(hello.Hook[:])
	policy := s.b.policy.Load()
	tenant, err := (*policy)(s.facts, s.wished)
	if err != nil {
		return refuse(wire.CodeTenant, err)
	}
	descriptor, err := s.page.open(s.id)
	if err != nil {
		return refuse(wire.CodeLimit, err)
	}
	defer func() { _ = unix.Close(descriptor) }()
	s.tenant, s.token = tenant, max(random(), 1)
	governed := s.sit(&hello, tenant)
	if h.Type == wire.TypeResume {
		s.resume(&hello)
	}
	s.page.beat(s.b.clock.now())
	s.showMemory()
	w := wire.Welcome{Token: s.token, GPUs: governed, Heartbeat: uint32(heartbeat / time.Millisecond), PageBytes: wire.PageSize}
	if s.b.options.FailClosed {
		w.FailClosed = 1
	}
	copy(w.Tenant[:len(w.Tenant)-1], tenant.Name)
	s.b.counters.count(h.Type, ok)
	_ = s.conn.SetReadDeadline(time.Time{})
	s.state.Store(int32(authenticated))
	if s.b.policy.Load() != policy {
		s.b.reload(s) // Reload may not have seen this session
	}
	s.fault = sendWith(fd, w.Append(wire.Header{Type: wire.TypeWelcome, Seq: h.Seq, Session: s.id}.Append(m.out[:0])), descriptor)
	return nil
}

// sit takes a seat on each of the session's GPUs and returns how many are
// governed. The pages say from then on what may be launched.
func (s *session) sit(hello *wire.Hello, tenant Tenant) (governed uint32) {
	s.seats = make([]*seat, hello.GPUs)
	for i, uuid := range hello.UUID[:hello.GPUs] {
		g := s.b.gpu(uuid)
		if g == nil {
			continue
		}
		t := &seat{s: s, index: i, gpu: g}
		g.do(func() { g.join(t, tenant) })
		s.seats[i] = t
		governed++
	}
	return governed
}

// gpu returns the GPU of that UUID, which begins to be shared where it was not
// yet; nil where it is not governed.
func (b *Broker) gpu(uuid [16]byte) *gpu {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.gpus[uuid]
	if g != nil || uuid == [16]byte{} || b.over() || len(b.gpus) >= b.timing.maxGPUs {
		return g
	}
	g = newGPU(b, uuid)
	if known := b.options.Known; known != nil && !known(g.uuid) {
		return nil
	}
	var err error
	if g.alarm, err = newAlarm(); err != nil {
		b.log.Warn("GPU not governed", "gpu", g.uuid, "err", err)
		return nil
	}
	b.gpus[uuid] = g
	b.tasks.Add(1)
	go g.run()
	return g
}

// resume books what the process held in the session before. That one ends, if
// this broker knows it; what it had is charged twice for a moment rather than
// not at all. Without the token nothing of another session is touched.
func (s *session) resume(hello *wire.Hello) {
	s.mu.Lock()
	for i, t := range s.seats {
		if t == nil || hello.Committed[i] == 0 {
			continue
		}
		s.memory = true
		if err := t.gpu.memory.Adopt(s.tenant.Name, s.id, min(hello.Committed[i], mostBytes)); err != nil {
			s.b.log.Warn("resumed memory not booked", "pid", s.facts.PID, "err", err)
		}
	}
	s.mu.Unlock()
	s.b.mu.Lock()
	old := s.b.sessions[hello.Old]
	mine := old != nil && old != s && old.token != 0 && old.token == hello.Token && old.facts.PID == s.facts.PID
	gone := mine && old.gone
	if mine {
		old.moved = true
	}
	s.b.mu.Unlock()
	switch {
	case gone:
		s.b.release(old, 0)
	case mine:
		_ = old.conn.Close()
	}
}

// Reload replaces the policy and judges all sessions by it. None is dropped: a
// process that it does not let have the tenant it wished becomes one that
// wished none, and where that is refused too, stays what it is.
func (b *Broker) Reload(p Policy) {
	b.policy.Store(&p)
	b.mu.Lock()
	all := make([]*session, 0, len(b.sessions))
	for _, s := range b.sessions {
		if state(s.state.Load()) >= authenticated && !s.gone {
			all = append(all, s)
		}
	}
	b.mu.Unlock()
	b.reload(all...)
}

// reload judges sessions by the policy that holds now.
func (b *Broker) reload(all ...*session) {
	b.reloads.Lock()
	defer b.reloads.Unlock()
	for _, s := range all {
		s.reconsider(*b.policy.Load())
	}
}

// reconsider judges a session by a new policy.
func (s *session) reconsider(p Policy) {
	tenant, err := p(s.facts, s.wished)
	if err != nil {
		s.notice(fmt.Sprintf("the tenant %q is not this process's any more: %v", s.wished, err))
		if tenant, err = p(s.facts, ""); err != nil {
			return
		}
	}
	s.mu.Lock()
	old := s.tenant
	s.tenant = tenant
	for _, t := range s.seats {
		if t != nil && s.memory && old.Name != tenant.Name {
			if err := t.gpu.memory.Move(tenant.Name, s.id); err != nil {
				s.b.log.Warn("memory not moved to another tenant", "pid", s.facts.PID, "err", err)
			}
		}
	}
	s.mu.Unlock()
	if old == tenant {
		return
	}
	for i, t := range s.seats {
		if t == nil {
			continue
		}
		t.gpu.do(func() {
			switch {
			case t.party == nil: // has left meanwhile
			case t.party.name == tenant.Name:
				t.gpu.change(t.party, tenant)
			default:
				t.gpu.leave(t)
				t.gpu.join(t, tenant)
			}
		})
		if old.Memory != tenant.Memory {
			s.tell(wire.Header{Type: wire.TypeLimitsChanged}, &wire.Memory{GPU: uint32(i), Bytes: tenant.Memory})
		}
	}
	s.showMemory()
}

// notice sends a line for the process's log.
func (s *session) notice(text string) {
	n := wire.Notice{Level: 1}
	copy(n.Text[:len(n.Text)-1], text)
	s.tell(wire.Header{Type: wire.TypeNotice}, &n)
}

// tell sends what nobody asked for.
func (s *session) tell(h wire.Header, m interface{ Append([]byte) []byte }) {
	h.Session = s.id
	if err := sendOn(s.conn, m.Append(h.Append(nil))); errors.Is(err, errSlow) {
		_ = s.conn.Close()
	}
}

// printable returns the text of a field, as much of it as can be a version.
func printable(field []byte) string {
	text := []byte(wire.Text(field))
	end := bytes.IndexFunc(text, func(r rune) bool {
		version := r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || bytes.ContainsRune([]byte(".-+_~"), r)
		return !version
	})
	if end >= 0 {
		text = text[:end]
	}
	return string(text)
}
