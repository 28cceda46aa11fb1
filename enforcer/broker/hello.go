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
func (x message) hello() *refusal {
	x.due.Store(0)
	var hello wire.Hello
	hello.Decode(x.payload)
	x.parent = span.ParseParent(hello.Caller())
	if err := x.b.identity.complete(&x.facts, func() bool { return x.b.exits.lives(x.session) }); err != nil {
		return refuse(wire.CodeDenied, err)
	}
	x.cuda, x.hook = hello.CUDA, printable(hello.Hook[:])
	x.unknown.Store(uint32(hello.Unknown))
	policy := x.b.policy.Load()
	wished := wire.Text(hello.Tenant[:])
	tenant, err := (*policy).Tenant(x.facts, wished)
	if err != nil {
		return refuse(wire.CodeTenant, err)
	}
	if twice(hello.UUID[:hello.GPUs]) {
		return refusedTwice
	}
	if r := x.b.roll.mayHave(x.session); r != nil {
		return r
	}
	descriptor, err := x.page.open(x.id)
	if err != nil {
		return x.b.doubt.want(err)
	}
	defer func() { _ = unix.Close(descriptor) }()
	x.b.roll.mu.Lock() // a RESUME of another connection compares them
	x.wished, x.token = wished, max(random(), 1)
	x.b.roll.mu.Unlock()
	x.tenant, x.since = tenant, time.Now()
	governed := x.sit(&hello, *policy)
	if len(x.strange) > 0 {
		x.b.gpus.strangers(x.session)
	}
	if x.Type == wire.TypeResume {
		x.resume(&hello)
	}
	x.page.pinged(x.b.clock.now())
	x.showMemory()
	w := wire.Welcome{Token: x.token, GPUs: governed, Heartbeat: uint32(pingInterval / time.Millisecond),
		PageBytes: wire.PageSize}
	if x.b.options.FailClosed {
		w.FailClosed = 1
	}
	copy(w.Tenant[:len(w.Tenant)-1], tenant)
	first := ""
	if len(x.seats) > 0 && x.seats[0] != nil {
		first = x.seats[0].gpu.uuid
	}
	(*policy).Quota(tenant, first).tell(&w)
	x.state.Store(int32(authenticated))
	if x.b.policy.Load() != policy {
		x.b.reload(x.session) // Reload may not have seen this session
	}
	x.b.absent.greet(x.session)
	descriptors := []int{descriptor}
	if hello.Leases == 1 && x.unread() == 0 { // no more than two are in flight
		traced := hello.Trace == 1 && x.b.options.Observe != nil
		leases, mapped, err := makeLeases(traced, hello.Crash == 1)
		if err != nil {
			return x.b.doubt.want(err)
		}
		x.leases, x.file = wire.Leases(mapped), os.NewFile(uintptr(leases), "leases")
		if traced {
			x.trace.open(mapped, x.file, hello.Crash == 1)
		}
		descriptors = append(descriptors, leases)
	}
	return x.hand(w.Append(x.answer(wire.TypeWelcome)), descriptors...)
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
		g := s.b.gpus.of(uuid)
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
		bytes, _ := s.b.options.listed(t.gpu.uuid, s.facts.PID)
		t.gpu.memory.Listed(bytes, s.id)
	}
	s.mu.Unlock()
	var gone, here []*session // whose memory is this session's now
	s.b.roll.mu.Lock()
	s.resumed, s.resumes = true, former{hello.Old, hello.Token}
	supersede := func(o *session) {
		s.inherit(o)
		if o.moved = true; o.gone {
			gone = append(gone, o)
		} else {
			here = append(here, o)
		}
	}
	old := s.b.roll.sessions[hello.Old]
	if old != nil && old != s && old.token != 0 && old.token == hello.Token && old.facts.PID == s.facts.PID {
		supersede(old)
	}
	if s.caller.sessions > 1 {
		for _, o := range s.b.roll.sessions {
			if o != s && o.caller == s.caller && o.wished == s.wished && o.resumed && !o.moved && !o.exited &&
				!o.welcomed.Load() {
				supersede(o)
			}
		}
	}
	s.b.roll.mu.Unlock()
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
	s.b.roll.mu.Lock()
	defer s.b.roll.mu.Unlock()
	if hello.Old == 0 || s.caller.sessions < 2 {
		return false
	}
	for _, o := range s.b.roll.sessions {
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
