package broker

import (
	"errors"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"gpusteward/internal/wire"
)

// A mail is room for one message and its answer. A session has one only while
// its socket is read: thousands of silent sessions cost no buffers.
type mail struct {
	in     [wire.FrameMax]byte
	out    [wire.HeaderSize + wire.HelloSize]byte
	sender [32]byte // room for the sender's credentials; none for descriptors, which the kernel drops then
	iov    unix.Iovec
	header unix.Msghdr
}

var mails = sync.Pool{New: func() any { return new(mail) }}

// receive reads and handles one message; false: there is none yet. The poller
// calls it, with the socket held open.
func (s *session) receive(fd uintptr) bool {
	m := mails.Get().(*mail)
	defer mails.Put(m)
	m.iov = unix.Iovec{Base: &m.in[0], Len: uint64(len(m.in))}
	m.header = unix.Msghdr{Iov: &m.iov, Iovlen: 1, Control: &m.sender[0]}
	m.header.SetControllen(len(m.sender))
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&m.header)),
		unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return false
	case errno != 0:
		s.fault = errno
	case n == 0:
		s.fault = io.EOF
	default:
		s.fault = s.dispatch(int(fd), m, int(n))
	}
	return true
}

// from returns the sender of the received message, 0 if the kernel does not
// say.
func (m *mail) from() int {
	const at = unix.SizeofCmsghdr
	h := (*unix.Cmsghdr)(unsafe.Pointer(&m.sender[0]))
	if m.header.Controllen < at+unix.SizeofUcred || h.Level != unix.SOL_SOCKET || h.Type != unix.SCM_CREDENTIALS {
		return 0
	}
	return int((*unix.Ucred)(unsafe.Pointer(&m.sender[at])).Pid)
}

// send sends a frame and never waits: unread frames stay in the process's
// socket, and when that is full the session ends.
func send(fd int, frame []byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&frame[0])),
		uintptr(len(frame)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno == 0 {
		return nil
	}
	return sent(errno)
}

func sent(err error) error {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
		return errSlow
	}
	return err
}

// sendWith sends a frame and descriptors, which remain the caller's.
func sendWith(fd int, frame []byte, descriptors ...int) error {
	return sent(unix.Sendmsg(fd, frame, unix.UnixRights(descriptors...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL))
}
