package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
)

// exits waits for the end of any number of processes with one goroutine: their
// pidfds are in one epoll, which itself is in Go's.
type exits struct {
	epoll *os.File
	raw   syscall.RawConn
	mu    sync.Mutex // against closing a pidfd twice
	looks sync.Mutex // one look at a time, so that its caller knows all earlier results
}

func newExits() (*exits, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	e := &exits{epoll: os.NewFile(uintptr(fd), "epoll")}
	if e.raw, err = e.epoll.SyscallConn(); err != nil {
		_ = e.epoll.Close()
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	return e, nil
}

// Close ends run.
func (e *exits) Close() error { return e.epoll.Close() }

// add starts to wait for the end of the session's process.
func (e *exits) add(s *session) error {
	e.mu.Lock() // the process may end at once
	defer e.mu.Unlock()
	var err error
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(s.id), Pad: int32(s.id >> 32)}
	if closed := e.raw.Control(func(fd uintptr) {
		err = unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, s.pidfd, &event)
	}); closed != nil {
		return closed
	}
	return err
}

// drop closes the session's pidfd, which also ends the wait.
func (e *exits) drop(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.pidfd >= 0 {
		_ = unix.Close(s.pidfd)
		s.pidfd = -1
	}
}

// lives reports whether the session's process still runs.
func (e *exits) lives(s *session) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.pidfd >= 0 && !procs.Ended(s.pidfd)
}

// run calls each with the number of every session whose process ends, until ctx
// ends.
func (e *exits) run(ctx context.Context, each func(id uint64)) error {
	for {
		var failed error
		err := e.raw.Read(func(fd uintptr) bool {
			n := 0
			n, failed = e.tell(int(fd), each)
			return n > 0 || failed != nil
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("wait for processes to end: %w", err)
		case failed != nil:
			return fmt.Errorf("wait for processes to end: %w", failed)
		}
	}
}

// look calls each with the number of every session whose process has ended by
// now and of which run did not know yet. It does not wait.
func (e *exits) look(each func(id uint64)) {
	_ = e.raw.Control(func(fd uintptr) { _, _ = e.tell(int(fd), each) }) // run reports failures
}

// tell calls each with the number of every session whose process has ended, once
// each, and returns how many.
func (e *exits) tell(epoll int, each func(id uint64)) (all int, err error) {
	e.looks.Lock()
	defer e.looks.Unlock()
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(epoll, events[:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return all, err
		}
		for _, event := range events[:max(n, 0)] {
			each(uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32)
		}
		if all += max(n, 0); n < len(events) {
			return all, nil
		}
	}
}
