package broker

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/wire"
)

// A state is where a session is in its life. A stale one fell silent: it gets
// no turns and keeps its memory. A closing one is gone, and its memory is
// charged until the driver has it back.
type state int32

const (
	connecting    state = iota // accepted; HELLO must come in time
	observing                  // asks for statistics and has no page
	authenticated              // WELCOME was sent
	active                     // has spoken since
	stale
	closing
	states
)

var stateNames = [states]string{"connecting", "observing", "authenticated", "active", "stale", "closing"}

// A session is a connection and what is known of its process. Its goroutine
// reads; others write into its page, and to its socket without waiting.
type session struct {
	b       *Broker
	id      uint64
	token   uint64 // 0 until WELCOME
	conn    *net.UnixConn
	raw     syscall.RawConn
	facts   Facts
	pidfd   int // see exits
	user    *user
	page    page
	state   atomic.Int32
	heard   atomic.Int64 // clock
	rate    rate
	refused time.Duration // when it last asked too much
	flooded time.Duration // since when it asks too much
	pause   time.Duration // that it is slowed down by before the next message
	fault   error         // why it ends
	seats   []*seat       // by the session's number of the GPU; nil: not governed
	wished  string
	hook    string
	since   time.Time
	denied  bool // the policy does not let it have what it wished; guarded by the broker's reloads
	cuda    uint32
	exited  bool // guarded by the broker's mutex
	gone    bool // guarded by the broker's mutex
	resumed bool // with memory that it says it had; guarded by the broker's mutex
	moved   bool // guarded by the broker's mutex: another session has what it had

	mu     sync.Mutex // what follows, and that the ledgers agree with it
	tenant string
	memory bool // it may have some
}

// Why sessions end from the broker's side.
var (
	errSlow    = errors.New("does not read its answers")
	errFlood   = errors.New("asks too much")
	errRefused = errors.New("was refused")
	errBye     = errors.New("said bye")
)

// serve is the life of a connection.
func (b *Broker) serve(conn *net.UnixConn) {
	defer b.tasks.Done()
	s, r := b.admit(conn)
	if r != nil {
		b.counters.count(0, int(r.code))
		m := mails.Get().(*mail)
		_ = sendOn(conn, m.refuse(wire.Header{}, r))
		mails.Put(m)
		_ = conn.Close()
		return
	}
	err := s.read()
	if errors.Is(err, errSlow) || errors.Is(err, errFlood) {
		b.log.Warn("session dropped", "pid", s.facts.PID, "uid", s.facts.UID, "err", err)
	}
	b.counters.ended(err)
	b.leave(s)
}

// admit makes a session of a connection, or says why not.
func (b *Broker) admit(conn *net.UnixConn) (*session, *refusal) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, refuse(wire.CodeDenied, err)
	}
	var facts Facts
	var pidfd int
	if closed := raw.Control(func(fd uintptr) {
		// For who waited at systemd's socket: newer kernels decide at its connect.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		facts, pidfd, err = b.peer(int(fd))
	}); closed != nil || err != nil {
		return nil, refuse(wire.CodeDenied, errors.Join(closed, err))
	}
	s := &session{b: b, conn: conn, raw: raw, facts: facts, pidfd: pidfd}
	s.heard.Store(int64(b.clock.now()))
	if r := b.enter(s); r != nil {
		b.exits.drop(s)
		return nil, r
	}
	if err := b.exits.add(s); err != nil {
		b.leave(s)
		return nil, refuse(wire.CodeDenied, err)
	}
	return s, nil
}

// enter counts a session in.
func (b *Broker) enter(s *session) *refusal {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := orElse(b.users[s.facts.UID], &user{})
	switch {
	case b.over():
		return refuse(wire.CodeState, errors.New("the broker is about to end"))
	case len(b.sessions) >= b.options.MaxSessions:
		return refuse(wire.CodeLimit, fmt.Errorf("the broker has %d sessions", b.options.MaxSessions))
	case u.sessions >= b.options.MaxPerUID:
		return refuse(wire.CodeLimit, fmt.Errorf("user %d has %d sessions", s.facts.UID, b.options.MaxPerUID))
	}
	b.users[s.facts.UID] = u
	u.sessions++
	b.last++
	s.user, s.id = u, b.last
	b.sessions[s.id] = s
	return nil
}

// read reads messages until the session ends, and says why it did.
func (s *session) read() error {
	_ = s.conn.SetReadDeadline(time.Now().Add(s.b.timing.hello))
	receive := s.receive
	for {
		err := s.raw.Read(receive)
		switch {
		case s.fault != nil:
			return s.fault
		case err != nil:
			return err
		case s.pause > 0:
			// Nobody else waits for this: its own messages stay in its socket.
			time.Sleep(s.pause)
			s.pause = 0
		}
	}
}

// leave ends a session's part in everything but memory that is still held.
func (b *Broker) leave(s *session) {
	s.state.Store(int32(closing))
	_ = s.conn.Close()
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
	if memory {
		for _, t := range s.seats {
			if t != nil {
				t.gpu.memory.End(s.id)
			}
		}
	}
	s.mu.Unlock()
	b.mu.Lock()
	s.gone = true
	exited, moved := s.exited, s.moved
	b.mu.Unlock()
	switch {
	case !memory:
		b.forget(s)
	case moved:
		b.release(s, 0)
	case exited:
		b.release(s, b.clock.now()+b.timing.release)
	}
}

// forget ends a session for good.
func (b *Broker) forget(s *session) {
	b.exits.drop(s)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[s.id] != s {
		return
	}
	delete(b.sessions, s.id)
	if s.user.sessions--; s.user.sessions == 0 {
		delete(b.users, s.facts.UID)
	}
}

// exited is told that a session's process has ended, which ends the session
// though a child of it may have the connection still.
func (b *Broker) exited(id uint64) {
	b.mu.Lock()
	s := b.sessions[id]
	if s == nil {
		b.mu.Unlock()
		return
	}
	s.exited = true
	gone := s.gone
	b.mu.Unlock()
	b.exits.drop(s)
	if gone {
		b.release(s, b.clock.now()+b.timing.release)
	} else {
		_ = s.conn.Close()
	}
}

// release returns a dead process's memory to its tenants once the driver has
// it back, or at the deadline.
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

// hear takes note that a session spoke.
func (s *session) hear(now time.Duration) {
	s.heard.Store(int64(now))
	switch was := state(s.state.Load()); was {
	case authenticated, stale:
		if s.state.CompareAndSwap(int32(was), int32(active)) && was == stale {
			s.quiet(false)
		}
	}
}

// beat tells the session's page that the broker lives, and what its tenant has
// in memory, and finds out whether it fell silent.
func (s *session) beat(now time.Duration) {
	was := state(s.state.Load())
	if was != authenticated && was != active && was != stale {
		return
	}
	s.page.beat(now)
	s.showMemory()
	if was == stale || now-time.Duration(s.heard.Load()) <= s.b.timing.stale {
		return
	}
	if s.state.CompareAndSwap(int32(was), int32(stale)) {
		s.quiet(true)
	}
}

// quiet tells the GPUs that a session fell silent or speaks again.
func (s *session) quiet(quiet bool) {
	for _, t := range s.seats {
		if t != nil {
			t.gpu.do(func() { t.gpu.quiet(t, quiet) })
		}
	}
}
