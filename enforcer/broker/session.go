package broker

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// A state is a stage in a session's life. A stale session fell silent: it gets
// no turns and keeps its memory. A closing one has ended, and its memory is
// charged until the driver has it back. An unread one has only messages in
// flight, on the broker's account, until the process reads them or hangs up.
type state int32

const (
	connecting    state = iota // accepted; HELLO must come in time
	observing                  // asks for statistics and has no page
	authenticated              // WELCOME was sent
	active                     // has spoken since
	stale
	closing
	unread
	states
)

var stateNames = [states]string{"connecting", "observing", "authenticated", "active", "stale", "closing", "unread"}

// A session is a connection and what is known of its process. The loop reads, or a
// goroutine for it; others write into its page, and to its socket without waiting.
type session struct {
	b     *Broker
	id    uint64
	token uint64 // 0 until WELCOME; written with the roll's mutex
	line
	facts   Facts
	pidfd   int // see exits
	caller  *caller
	owner   string // see Options
	user    *user
	page    page
	looked  uint64      // number of the latest look at its trace; ShowTraces'
	leases  wire.Leases // nil: the hook has none; used by its reader, and by ledgers until the session ends there
	file    *os.File    // of the leases
	trace   trace
	state   atomic.Int32
	heard   atomic.Int64 // clock
	due     atomic.Int64 // clock: when the first message must be there; 0: it is
	rate    rate
	refused time.Duration // when it last exceeded its rate
	flooded time.Duration // since when it exceeds its rate
	pause   time.Duration // that it is slowed down by before the next message
	fault   error         // why it ends
	seats   []*seat       // by the session's number of the GPU; nil: not governed
	strange [][16]byte    // the GPUs that are not
	wished  string        // written with the roll's mutex
	hook    string
	since   time.Time
	denied  bool // the policy refuses its wish; guarded by the broker's reloads
	cuda    uint32
	parent  span.Parent   // of its spans
	lacks   string        // why its last RESERVE was denied, for the span; empty: it was not
	unknown atomic.Uint32 // entries of the driver, to its hook
	absent  atomic.Bool   // its process is suspended
	// it has spoken since WELCOME: its process got that
	welcomed atomic.Bool
	exited   bool      // guarded by the roll's mutex
	gone     bool      // guarded by the roll's mutex
	resumed  bool      // with memory that it says it had; guarded by the roll's mutex
	resumes  former    // guarded by the roll's mutex
	moved    bool      // another session has its memory; guarded by the roll's mutex
	left     time.Time // when it went and its process did not; guarded by the roll's mutex

	mu     sync.Mutex // guards the fields below, and their agreement with the ledgers
	tenant string
	memory bool // it may have some
	away   bool // it no longer counts as its tenant's
}

// A former session is one of a broker, as a RESUME names it.
type former struct{ id, token uint64 }

// Reasons for the broker to end a session.
var (
	errSlow    = errors.New("does not read its answers")
	errFlood   = errors.New("asks too much")
	errRefused = errors.New("was refused")
	errBye     = errors.New("said bye")
	errBehind  = errors.New("connections arrive faster than they can be accepted")
)

// serve begins to serve a connection, for a process with these credentials.
func (b *Broker) serve(fd int, cred *unix.Ucred) {
	defer b.tasks.Done()
	s := &session{b: b, line: line{fd: fd}, pidfd: -1}
	if r := b.admit(s, cred); r != nil {
		b.turnAway(fd, r)
		s.close()
	}
}

// lose ends a session for a reason.
func (b *Broker) lose(s *session, err error) {
	if errors.Is(err, errSlow) || errors.Is(err, errFlood) {
		b.log.Warn("session dropped", "pid", s.facts.PID, "uid", s.facts.UID, "err", err)
	}
	b.counters.ended(err)
	b.leave(s)
}

// admit identifies the process of a connection and counts it, or returns why not.
func (b *Broker) admit(s *session, cred *unix.Ucred) *refusal {
	now := b.clock.now()
	s.heard.Store(int64(now))
	s.due.Store(int64(now + b.timing.hello))
	var err error
	s.pidfd, err = b.identity.peer(&s.facts, s.fd, cred)
	if err == nil {
		if r := b.roll.enter(s); r != nil {
			b.exits.drop(s)
			return r
		}
		if err = b.exits.add(s); err == nil {
			err = b.loop.begin(s)
		}
		if err != nil {
			b.roll.mu.Lock()
			b.roll.uncount(s)
			b.roll.mu.Unlock()
		}
	}
	if err == nil {
		return nil
	}
	b.exits.drop(s)
	if starving(err) {
		b.doubt.starve(err)
	}
	return refuse(wire.CodeDenied, err)
}

// leave ends everything of a session except memory that is still held.
func (b *Broker) leave(s *session) {
	s.state.Store(int32(closing))
	s.hangUp()
	for _, t := range s.seats {
		if t != nil {
			t.gpu.do(func() {
				t.left = true
				t.gpu.leave(t)
			})
		}
	}
	s.page.close()
	s.mu.Lock()
	memory := s.memory
	s.away = true
	for _, t := range s.seats {
		if t != nil {
			t.gpu.memory.Leave(s.tenant)
			if memory {
				t.gpu.memory.End(s.id)
			}
		}
	}
	s.mu.Unlock()
	s.trace.close(s)
	if s.leases != nil {
		// The process may keep the file, whose pages are on our account. Where they cannot be removed, it keeps them.
		_ = unix.Madvise(s.leases, unix.MADV_REMOVE)
		_ = unix.Munmap(s.leases)
		_ = s.file.Close()
	}
	b.roll.mu.Lock()
	delete(b.roll.silent, s)
	s.gone = true
	exited, moved := s.exited, s.moved
	b.roll.mu.Unlock()
	switch {
	case !memory:
		b.forget(s)
	case moved:
		b.release(s, 0)
	case exited:
		b.release(s, b.clock.now()+b.timing.release)
	default:
		b.abandon(s)
	}
}

// forget ends a session for good, once it has no unread message in flight.
func (b *Broker) forget(s *session) {
	b.exits.drop(s)
	b.roll.mu.Lock()
	defer b.roll.mu.Unlock()
	if b.roll.sessions[s.id] == s && s.unread() > 0 {
		s.state.Store(int32(unread))
		return
	}
	s.close()
	b.roll.uncount(s)
}

// exited ends the session of a process that has ended, even if a child still
// has the connection. Its memory is known to be a dead one's from now on.
func (b *Broker) exited(id uint64) {
	b.roll.mu.Lock()
	s := b.roll.sessions[id]
	if s == nil {
		b.roll.mu.Unlock()
		return
	}
	s.exited = true
	gone := s.gone
	b.roll.mu.Unlock()
	b.exits.drop(s)
	if state(s.state.Load()) >= authenticated { // otherwise it is taking its seats now, and has nothing
		for _, t := range s.seats {
			if t != nil {
				t.gpu.memory.End(s.id)
			}
		}
	}
	if gone {
		b.release(s, b.clock.now()+b.timing.release)
	} else {
		s.hangUp()
	}
}

// release returns a dead process's memory to its tenants once the driver has it
// back, or at the deadline.
func (b *Broker) release(s *session, deadline time.Duration) {
	held := false
	for _, t := range s.seats {
		if t == nil {
			continue
		}
		if holds := b.options.Holds; holds != nil && b.clock.now() < deadline {
			if _, _, listed := holds(t.gpu.uuid, s.facts.PID); listed {
				held = true
				continue
			}
		}
		t.gpu.memory.Release(s.id)
	}
	if !held {
		b.forget(s)
		return
	}
	time.AfterFunc(min(b.timing.poll, max(deadline-b.clock.now(), time.Millisecond)), func() { b.release(s, deadline) })
}

// hear records that a session spoke.
func (s *session) hear(now time.Duration) {
	s.heard.Store(int64(now))
	switch was := state(s.state.Load()); was {
	case authenticated, stale:
		s.welcomed.Store(true)
		if s.state.CompareAndSwap(int32(was), int32(active)) && was == stale {
			s.silence(false)
		}
	}
}

// heartbeat shows the session's page that the broker lives and what memory its
// tenant has, and finds out whether the session fell silent.
func (s *session) pinged(now time.Duration) {
	was := state(s.state.Load())
	switch {
	case was == unread:
		s.b.forget(s)
	case s.due.Load() != 0 && int64(now) > s.due.Load() && s.unheard() == 0:
		s.hangUp()
	}
	if was != authenticated && was != active && was != stale {
		return
	}
	s.page.pinged(now)
	s.showMemory()
	if was == stale || now-time.Duration(s.heard.Load()) <= s.b.timing.stale {
		return
	}
	if s.state.CompareAndSwap(int32(was), int32(stale)) {
		s.silence(true)
	}
}

// silence tells the GPUs that a session fell silent or speaks again. A silent
// session without memory makes room for others.
func (s *session) silence(quiet bool) {
	s.mu.Lock()
	memory := s.memory
	s.mu.Unlock()
	s.b.roll.mu.Lock()
	if delete(s.b.roll.silent, s); quiet && !memory && !s.gone {
		s.b.roll.silent[s] = struct{}{}
	}
	s.b.roll.mu.Unlock()
	for _, t := range s.seats {
		if t != nil {
			t.gpu.do(func() { t.gpu.quiet(t, quiet) })
		}
	}
}
