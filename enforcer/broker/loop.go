package broker

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop hears all clients and the alarm, with one goroutine and one epoll, which
// itself is in the runtime's. A goroutine for each client would cost memory, make an
// extra read of each socket, wake other threads, and decide after each message. A
// thread that blocks in an epoll of its own would cost more: every 10 ms the
// runtime's monitor would take its processor away, and then poll every 20 us for a
// while.
//
// The loop takes one message of a session at a time, and all sessions in turn. Work
// that may take long has a goroutine of its own; the loop does not hear the session
// until it is done.
type loop struct {
	b     *Broker
	epoll *os.File
	raw   syscall.RawConn
	alarm alarm
	mail  *mail

	poll   func(epoll uintptr) bool // look, made once
	events [64]unix.EpollEvent
	got    []unix.EpollEvent // of events
	fault  syscall.Errno

	mu       sync.Mutex
	sessions map[uint64]*session // that have not ended, by number
}

func newLoop(b *Broker) (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // cannot fail; it makes the runtime wait for the file
	l := &loop{b: b, epoll: os.NewFile(uintptr(fd), "epoll"), mail: new(mail), sessions: map[uint64]*session{}}
	l.poll = l.look
	if l.raw, err = l.epoll.SyscallConn(); err == nil {
		l.alarm.fd, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	}
	if err == nil {
		if err = l.watch(l.alarm.fd, unix.EPOLLIN|unix.EPOLLET, 0); err == nil { // so that nobody has to read it
			return l, nil
		}
		_ = unix.Close(l.alarm.fd)
	}
	_ = l.epoll.Close()
	return nil, fmt.Errorf("make alarm: %w", err)
}

// watch begins to wait for events of a session's descriptor, or of the alarm's,
// which is number 0.
func (l *loop) watch(fd int, events uint32, id uint64) (err error) {
	event := unix.EpollEvent{Events: events, Fd: int32(id), Pad: int32(id >> 32)}
	if ended := l.raw.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &event)
	}); ended != nil {
		return ended
	}
	return err
}

// wait returns the next events. Only one goroutine calls it.
func (l *loop) wait() ([]unix.EpollEvent, error) {
	l.got = nil
	if err := l.raw.Read(l.poll); err != nil || l.fault != 0 {
		return nil, cmp.Or(err, error(l.fault))
	}
	return l.got, nil
}

// look looks for events, and returns whether there is something. The poller calls
// it, with the epoll held open.
func (l *loop) look(epoll uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&l.events[0])),
		uintptr(len(l.events)), 0, 0, 0)
	switch errno {
	case 0:
		l.got = l.events[:n]
	case unix.EINTR:
	default:
		l.fault = errno
	}
	return len(l.got) > 0 || l.fault != 0
}

// begin hears a new session.
func (l *loop) begin(s *session) error {
	l.mu.Lock()
	l.sessions[s.id] = s
	l.mu.Unlock()
	err := l.hear(s)
	if err != nil {
		l.forget(s)
	}
	return err
}

// hear hears a session that is not heard.
func (l *loop) hear(s *session) error { return l.watch(s.fd, unix.EPOLLIN, s.id) }

// apart does something for a session that the loop does not hear meanwhile, nor for
// as long as the session is slowed down by. An error ends the session.
func (l *loop) apart(s *session, do func() error) {
	_ = l.raw.Control(func(epoll uintptr) { _ = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_DEL, s.fd, nil) })
	l.b.tasks.Add(1)
	go func() {
		defer l.b.tasks.Done()
		err := do()
		if err == nil {
			// Nobody else waits for this: the session's own messages stay in
			// its socket.
			time.Sleep(s.pause)
			err = l.hear(s)
		}
		if err != nil {
			l.forget(s)
			l.b.lose(s, err)
		}
	}()
}

// forget drops a session that is not heard.
func (l *loop) forget(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, s.id)
}

// run serves until the broker is over.
func (l *loop) run() error {
	for {
		events, err := l.wait()
		switch {
		case l.b.over():
			return nil
		case err != nil:
			return fmt.Errorf("wait for clients: %w", err)
		}
		for _, event := range events {
			id := uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32
			if id == 0 {
				l.b.times.ring()
				continue
			}
			l.mu.Lock()
			s := l.sessions[id]
			l.mu.Unlock()
			l.serve(s)
		}
		l.b.times.settle()
	}
}

// serve takes a message of a session.
func (l *loop) serve(s *session) {
	m := l.mail
	n, err := m.receive(s.fd)
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
	case err != nil:
		l.end(s, err)
	case m.slow(n):
		if s.due.Load() != 0 { // the message is there: it is not late, however long it takes
			s.due.Store(int64(l.b.clock.now() + l.b.timing.hello))
		}
		l.mail = mails.Get().(*mail)
		l.apart(s, func() error {
			defer mails.Put(m)
			return s.dispatch(m, n)
		})
	default:
		if err = s.dispatch(m, n); err != nil || s.pause > 0 {
			l.end(s, err)
		}
	}
}

// end ends a session because of an error, or pauses it without one.
func (l *loop) end(s *session, err error) { l.apart(s, func() error { return err }) }

// An alarm rings at a time of CLOCK_MONOTONIC. It uses a timer of the kernel, not
// of the runtime: whenever a runtime timer is due, a second thread wakes to look
// for more work, which costs as much as the rest of a turn's end. The timetable
// guards it.
type alarm struct {
	fd int           // -1 once it is closed
	at time.Duration // 0 not at all
}

// set changes the time of the alarm.
func (a *alarm) set(at time.Duration) {
	if a.at == at || a.fd < 0 {
		return
	}
	a.at = at
	when := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	_ = unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &when, nil)
}

// close ends the alarm: it does not ring any more.
func (a *alarm) close() {
	if a.fd >= 0 {
		_ = unix.Close(a.fd)
	}
	a.fd = -1
}
