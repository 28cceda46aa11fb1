package broker

import (
	"errors"
	"fmt"
	"time"

	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// A refusal is the reason for an ERR.
type refusal struct {
	code  wire.Code
	text  string
	final bool // the session ends
}

func refuse(code wire.Code, err error) *refusal { return &refusal{code, err.Error(), true} }

var (
	refusedFrame   = &refusal{wire.CodeFrame, "the frame cannot be read", false}
	refusedType    = &refusal{wire.CodeFrame, "unknown type of message", false}
	refusedVersion = &refusal{wire.CodeVersion, fmt.Sprintf("this broker speaks version %d", wire.Major), true}
	refusedSession = &refusal{wire.CodeState, "the message names another session", false}
	refusedEarly   = &refusal{wire.CodeState, "HELLO comes first", false}
	refusedLate    = &refusal{wire.CodeState, "the session has begun", false}
	refusedSide    = &refusal{wire.CodeState, "only the broker sends this message", false}
	refusedRate    = &refusal{wire.CodeLimit, "too many messages", false}
	refusedChild   = &refusal{wire.CodeDenied, "this session belongs to another process", false}
	refusedMany    = &refusal{wire.CodeLimit, "too many reservations", false}
	refusedTwice   = &refusal{wire.CodeGPU, "a GPU is named twice", true}
	refusedUnread  = &refusal{wire.CodeLimit, "the previous statistics were not read", false}
	refusedAsks    = &refusal{wire.CodeLimit, "statistics are requested too often", false}
	refusedGPU     = &refusal{wire.CodeGPU, "no such GPU in this session", false}
)

// A message is one that a session handles now, with room for the answer.
type message struct {
	*session
	wire.Header
	m       *mail
	payload []byte
}

// answer begins an answer of a type: its payload is appended.
func (x message) answer(t wire.Type) []byte {
	return wire.Header{Type: t, Seq: x.Seq, Session: x.id}.Append(x.m.out[:0])
}

// An operation is the handling of one type of message.
type operation struct {
	do    func(message) *refusal
	first bool   // opens a session
	any   bool   // in a session or not
	books bool   // moves memory or ends turns: it is delayed where others are refused, because its loss would stay
	slow  bool   // takes longer than others should wait
	span  string // that it becomes, if it is sampled; empty: it never is
}

var operations = [wire.Types]operation{
	wire.TypeHello:   {do: message.hello, first: true, slow: true, span: "broker.hello"},
	wire.TypeResume:  {do: message.hello, first: true, slow: true, span: "broker.resume"},
	wire.TypePing:    {do: message.ping},
	wire.TypeReserve: {do: message.reserve, books: true, span: "broker.reserve"},
	wire.TypeCommit:  {do: message.book, books: true},
	wire.TypeAbort:   {do: message.book, books: true},
	wire.TypeFree:    {do: message.book, books: true},
	wire.TypeAcquire: {do: message.acquire},
	wire.TypeYield:   {do: message.usage, books: true},
	wire.TypeUsage:   {do: message.usage},
	wire.TypeBye:     {do: message.bye, any: true},
	wire.TypeStats:   {do: message.stats, any: true, slow: true},
}

// dispatch handles a message of n bytes: first the checks that need no look
// inside, then the message, then the counters. An error ends the session.
func (s *session) dispatch(m *mail, n int) error {
	now := s.b.clock.now()
	h, payload, err := wire.Decode(m.in[:n])
	r := s.check(m, h, err, now)
	if r == nil {
		op := &operations[h.Type]
		var a *span.Span
		if op.span != "" {
			a = s.begin(op.span, now)
		}
		if r = op.do(message{s, h, m, payload}); a != nil {
			s.end(a, h, payload, r)
		}
		if s.fault != nil {
			return s.fault
		}
	}
	if r == nil {
		return nil
	}
	s.b.counters.count(h.Type, int(r.code))
	switch err := send(s.fd, m.refuse(h, r)); {
	case err != nil:
		return err
	case r.final:
		return errRefused
	case r == refusedRate && now-s.flooded > s.b.timing.flood:
		return errFlood
	}
	return nil
}

// check returns the reason to refuse a message regardless of its content.
func (s *session) check(m *mail, h wire.Header, err error, now time.Duration) *refusal {
	if m.from() != s.facts.PID {
		// A forked child has its parent's descriptor. It does not keep the
		// session alive either.
		if r := s.limit(h, now); r != nil {
			return r
		}
		return refusedChild
	}
	s.hear(now)
	if r := s.limit(h, now); r != nil {
		return r
	}
	switch {
	case errors.Is(err, wire.ErrVersion):
		return refusedVersion
	case errors.Is(err, wire.ErrType):
		return refusedType
	case err != nil:
		return refusedFrame
	}
	op := &operations[h.Type]
	begun := s.token != 0
	switch {
	case op.do == nil:
		return refusedSide
	case op.any:
		return nil
	case op.first && begun:
		return refusedLate
	case !op.first && !begun:
		return refusedEarly
	case begun && h.Session != s.id:
		return refusedSession
	}
	return nil
}

// limit takes a message from the session's rate and its user's. A message
// beyond the user's rate is only delayed, because others may have used that
// up. Beyond the session's own rate, messages for the books are delayed, and
// the others are refused.
func (s *session) limit(h wire.Header, now time.Duration) *refusal {
	t := &s.b.timing
	if s.pause = min(s.user.rate.owe(now, t.perUser), time.Second); s.pause > 0 {
		s.b.counters.slowed.Add(1)
	}
	if s.rate.take(now, t.perSession) {
		return nil
	}
	s.pause = max(s.pause, time.Second/time.Duration(t.perSession))
	s.b.counters.slowed.Add(1)
	if h.Type.Known() && operations[h.Type].books {
		return nil
	}
	if now-s.refused > time.Second {
		s.flooded = now
	}
	s.refused = now
	return refusedRate
}

// refuse sends an ERR.
func (m *mail) refuse(h wire.Header, r *refusal) []byte {
	e := wire.Err{Code: r.code, Type: uint32(h.Type)}
	copy(e.Text[:len(e.Text)-1], r.text)
	return e.Append(wire.Header{Type: wire.TypeErr, Seq: h.Seq, Session: h.Session}.Append(m.out[:0]))
}

// seat returns the session's place on a GPU; nil if it has none, with a refusal
// if there is no such GPU.
func (s *session) seat(number uint32) (*seat, *refusal) {
	if int64(number) >= int64(len(s.seats)) {
		return nil, refusedGPU
	}
	return s.seats[number], nil
}

func (x message) ping() *refusal {
	x.b.counters.count(x.Type, ok)
	x.unknown.Store(max(x.unknown.Load(), x.Flags))
	for _, t := range x.seats {
		if t != nil && t.mute.Swap(false) {
			x.b.times.tell(func() { t.gpu.hear(t) })
		}
	}
	x.b.times.settle() // the answer says that the pages show what came before
	x.fault = send(x.fd, x.answer(wire.TypePong))
	return nil
}

func (x message) bye() *refusal {
	x.b.counters.count(x.Type, ok)
	x.fault = errBye
	return nil
}

func (x message) acquire() *refusal {
	var a wire.Acquire
	a.Decode(x.payload)
	t, r := x.seat(a.GPU)
	if r != nil {
		return r
	}
	x.b.counters.count(x.Type, ok)
	if t != nil && !t.asked.Swap(true) {
		x.time(t, func() { t.gpu.acquire(t) })
	}
	return nil
}

// usage handles YIELD and USAGE.
func (x message) usage() *refusal {
	var u wire.Usage
	u.Decode(x.payload)
	t, r := x.seat(uint32(u.GPU))
	if r != nil {
		return r
	}
	x.b.counters.count(x.Type, ok)
	if t != nil && t.own.Swap(x.Flags) == 0 && x.Flags > 0 {
		x.takes(t, x.Flags)
	}
	switch {
	case t == nil:
	case x.Type == wire.TypeUsage:
		x.time(t, func() { t.gpu.report(t, &u) })
	default:
		if u.Why == wire.WhyIdle {
			t.asked.Store(false)
		}
		x.time(t, func() { t.gpu.yield(t, &u) })
	}
	return nil
}

// takes records that a process set its own time slice, even if its tenant is not judged. It does not log
// each message: a process can send any number.
func (s *session) takes(t *seat, us uint32) {
	s.mu.Lock()
	tenant := s.tenant
	s.mu.Unlock()
	if s.b.taken.again(&s.b.common) {
		s.b.log.Warn("a program gave itself longer time slices by a request to the driver: others have less of the GPU",
			"pid", s.facts.PID, "uid", s.facts.UID, "tenant", tenant, "gpu", t.gpu.uuid, "us", us)
	}
}

// time passes a message about a seat on. The first one takes the seat.
func (s *session) time(t *seat, tell func()) {
	s.b.times.tell(func() {
		if t.party == nil && !t.left {
			s.mu.Lock() // in here, or a change of tenant would be missed
			tenant := s.tenant
			s.mu.Unlock()
			t.gpu.join(t, tenant, (*s.b.policy.Load()).Quota(tenant, t.gpu.uuid))
		}
		if t.party != nil {
			t.gpu.quiet(t, false)
			tell()
		}
	})
}

// hint returns nanoseconds that a process claims, within reason.
func hint(ns uint64) time.Duration { return time.Duration(min(ns, uint64(time.Hour))) }
