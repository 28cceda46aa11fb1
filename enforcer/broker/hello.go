package broker

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// hello opens a session: HELLO, or RESUME with the memory of an earlier
// session.
func (s *session) hello(fd int, m *mail, h wire.Header, payload []byte) *refusal {
	s.due.Store(0)
	var hello wire.Hello
	hello.Decode(payload)
	s.parent = span.ParseParent(hello.Caller())
	if err := s.b.complete(s); err != nil {
		return refuse(wire.CodeDenied, err)
	}
	s.cuda, s.hook = hello.CUDA, printable(hello.Hook[:])
	s.unknown.Store(uint32(hello.Unknown))
	policy := s.b.policy.Load()
	wished := wire.Text(hello.Tenant[:])
	tenant, err := (*policy).Tenant(s.facts, wished)
	if err != nil {
		return refuse(wire.CodeTenant, err)
	}
	if twice(hello.UUID[:hello.GPUs]) {
		return refusedTwice
	}
	if r := s.b.mayHave(s); r != nil {
		return r
	}
	descriptor, err := s.page.open(s.id)
	if err != nil {
		return s.b.want(err)
	}
	defer func() { _ = unix.Close(descriptor) }()
	s.b.mu.Lock() // a RESUME of another connection compares them
	s.wished, s.token = wished, max(random(), 1)
	s.b.mu.Unlock()
	s.tenant, s.since = tenant, time.Now()
	governed := s.sit(&hello, *policy)
	if len(s.strange) > 0 {
		s.b.strangers(s)
	}
	if h.Type == wire.TypeResume {
		s.resume(&hello)
	}
	s.page.pinged(s.b.clock.now())
	s.showMemory()
	w := wire.Welcome{Token: s.token, GPUs: governed, Heartbeat: uint32(pingInterval / time.Millisecond),
		PageBytes: wire.PageSize}
	if s.b.options.FailClosed {
		w.FailClosed = 1
	}
	copy(w.Tenant[:len(w.Tenant)-1], tenant)
	first := ""
	if len(s.seats) > 0 && s.seats[0] != nil {
		first = s.seats[0].gpu.uuid
	}
	(*policy).Quota(tenant, first).tell(&w)
	s.state.Store(int32(authenticated))
	if s.b.policy.Load() != policy {
		s.b.reload(s) // Reload may not have seen this session
	}
	s.b.greet(s)
	descriptors := []int{descriptor}
	if hello.Leases == 1 && s.unread() == 0 { // no more than two are in flight
		traced := hello.Trace == 1 && s.b.options.Observe != nil
		leases, mapped, err := makeLeases(traced, hello.Crash == 1)
		if err != nil {
			return s.b.want(err)
		}
		s.leases, s.file = wire.Leases(mapped), os.NewFile(uintptr(leases), "leases")
		if traced {
			s.trace.open(mapped, s.file, hello.Crash == 1)
		}
		descriptors = append(descriptors, leases)
	}
	return s.hand(fd, h.Type, w.Append(wire.Header{Type: wire.TypeWelcome, Seq: h.Seq,
		Session: s.id}.Append(m.out[:0])), descriptors...)
}

// twice reports whether a GPU is named twice: each has one seat.
func twice(uuids [][16]byte) bool {
	for i, uuid := range uuids {
		if uuid != [16]byte{} && slices.Contains(uuids[:i], uuid) {
			return true
		}
	}
	return false
}

// sit reserves a seat on each of the session's GPUs and returns the number of
// governed ones. The process takes the seat when it makes a context on the GPU,
// and the page then says what may be launched. An ungoverned GPU may be used at
// will or, if the broker fails closed, not at all.
func (s *session) sit(hello *wire.Hello, p Policy) (governed uint32) {
	s.seats = make([]*seat, hello.GPUs)
	for i, uuid := range hello.UUID[:hello.GPUs] {
		g := s.b.gpu(uuid)
		if g == nil {
			s.strange = append(s.strange, uuid)
			if s.b.options.FailClosed {
				s.page.set(i, wire.Turn{Mode: wire.ModePause})
			}
			continue
		}
		g.first.Do(func() {
			s.b.reloads.Lock()
			defer s.b.reloads.Unlock()
			g.keep(*s.b.policy.Load())
		})
		g.cap(s.tenant, p.Quota(s.tenant, g.uuid).Memory)
		g.memory.Enter(s.tenant)
		s.seats[i] = &seat{s: s, index: i, gpu: g}
		governed++
	}
	return governed
}

// gpu returns the GPU of that UUID, and begins to share it if necessary; nil:
// it is not governed.
func (b *Broker) gpu(uuid [16]byte) *gpu {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.gpus[uuid]
	if g != nil || uuid == [16]byte{} || b.over() || len(b.gpus) >= b.timing.maxGPUs {
		return g
	}
	name, known := b.name(uuid)
	if !known {
		return nil
	}
	g = b.times.add(name, uuid)
	b.gpus[uuid] = g
	return g
}

// name returns a UUID as NVML writes it, and whether the host has such a GPU or
// MIG device: the UUID alone does not tell which it is.
func (b *Broker) name(uuid [16]byte) (name string, known bool) {
	is := b.options.Known
	if mig := written("MIG", uuid); is != nil && is(mig) {
		return mig, true
	}
	name = written("GPU", uuid)
	return name, is == nil || is(name)
}

// giveUp drops MIG devices that counted as GPUs because no driver could
// identify them yet, and what counted as a GPU until the host's were known.
func (b *Broker) giveUp() {
	for _, g := range b.shared() {
		if name, known := b.name(g.bytes); !known || name != g.uuid {
			b.mu.Lock()
			delete(b.gpus, g.bytes)
			b.mu.Unlock()
		}
	}
}

// misplaced reports whether a session has a GPU that is governed only now, or
// was given up; the next session of its process has the right one.
func (b *Broker) misplaced(s *session) bool {
	if slices.ContainsFunc(s.strange, func(uuid [16]byte) bool { return b.gpu(uuid) != nil }) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(s.seats, func(t *seat) bool { return t != nil && b.gpus[t.gpu.bytes] != t.gpu })
}

// strangers records that a session has ungoverned GPUs. It does not log each
// one: a process can invent any number.
func (b *Broker) strangers(s *session) {
	b.counters.ungoverned.Add(1)
	now := b.clock.now()
	if was := b.met.Load(); b.lately(time.Duration(was), now) || !b.met.CompareAndSwap(was, int64(now)) {
		return
	}
	names := make([]string, len(s.strange))
	for i, uuid := range s.strange {
		names[i] = written("GPU", uuid)
	}
	what := "no quota applies on GPUs that this host is not known to have: programs run there without limits"
	if b.options.FailClosed {
		what = "GPUs that this host is not known to have are closed: programs wait there, and get no memory"
	}
	b.log.Warn(what, "pid", s.facts.PID, "uid", s.facts.UID, "tenant", s.tenant, "gpus", names)
}

// resume books the memory that the process held in its earlier session. That
// session ends, if this broker knows it; its memory is charged twice for a
// moment rather than not at all. So does a session that the process resumed before, and
// whose WELCOME came too late for it: it does not know of that one, and declares all
// again. If it has spoken in a session that resumed the same one, this is the one that it gave up,
// which is only served later: nothing is charged again. Without the token nothing of another
// session is touched.
func (s *session) resume(hello *wire.Hello) {
	if s.givenUp(hello) {
		return
	}
	s.mu.Lock()
	for i, t := range s.seats {
		if t == nil || hello.Committed[i] == 0 {
			continue
		}
		s.memory = true
		if err := t.gpu.memory.Adopt(s.tenant, s.id, min(hello.Committed[i], mostBytes)); err != nil {
			s.b.log.Warn("resumed memory not booked", "pid", s.facts.PID, "err", err)
		}
		bytes, _ := t.gpu.listed(s.facts.PID)
		t.gpu.memory.Listed(bytes, s.id)
	}
	s.mu.Unlock()
	var gone, here []*session // whose memory is this session's now
	s.b.mu.Lock()
	s.resumed, s.resumes = true, former{hello.Old, hello.Token}
	supersede := func(o *session) {
		s.inherit(o)
		if o.moved = true; o.gone {
			gone = append(gone, o)
		} else {
			here = append(here, o)
		}
	}
	old := s.b.sessions[hello.Old]
	if old != nil && old != s && old.token != 0 && old.token == hello.Token && old.facts.PID == s.facts.PID {
		supersede(old)
	}
	if s.caller.sessions > 1 {
		for _, o := range s.b.sessions {
			if o != s && o.caller == s.caller && o.wished == s.wished && o.resumed && !o.moved && !o.exited &&
				!o.welcomed.Load() {
				supersede(o)
			}
		}
	}
	s.b.mu.Unlock()
	for _, o := range gone {
		s.b.release(o, 0)
	}
	for _, o := range here {
		o.hangUp()
	}
}

// givenUp reports whether the process has already spoken in another session that resumed the same
// former one.
func (s *session) givenUp(hello *wire.Hello) bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if hello.Old == 0 || s.caller.sessions < 2 {
		return false
	}
	for _, o := range s.b.sessions {
		if o.caller == s.caller && o.resumed && o.resumes == (former{hello.Old, hello.Token}) && o.welcomed.Load() {
			return true
		}
	}
	return false
}

// notice sends a line for the process's log.
func (s *session) notice(text string) {
	n := wire.Notice{Level: 1}
	copy(n.Text[:len(n.Text)-1], text)
	s.tell(wire.Header{Type: wire.TypeNotice}, &n)
}

// tell sends a message that is not an answer.
func (s *session) tell(h wire.Header, m interface{ Append([]byte) []byte }) {
	h.Session = s.id
	frame, sent := m.Append(h.Append(nil)), error(nil)
	s.hold(func(fd int) { sent = send(fd, frame) })
	if errors.Is(sent, errSlow) {
		s.hangUp()
	}
}

// printable returns the part of a field that can be a version.
func printable(field []byte) string {
	text := []byte(wire.Text(field))
	end := bytes.IndexFunc(text, func(r rune) bool {
		version := r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' ||
			bytes.ContainsRune([]byte(".-+_~"), r)
		return !version
	})
	if end >= 0 {
		text = text[:end]
	}
	return string(text)
}
