package broker

import (
	"errors"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"gpusteward/internal/wire"
)

// A line is a connection. Its session's loop may use the descriptor at any
// time; others may do so while it is held open for them.
type line struct {
	fd     int
	mu     sync.Mutex
	closed bool
}

// hold calls use with the descriptor, unless it is closed.
func (c *line) hold(use func(fd int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		use(c.fd)
	}
}

// close closes the socket, once.
func (c *line) close() {
	c.hold(func(fd int) {
		_ = unix.Close(fd)
		c.closed = true
	})
}

// hangUp ends the connection, and with it the session. Messages in flight can
// still be read.
func (c *line) hangUp() {
	c.hold(func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
}

// unread returns the size of the messages in flight, in bytes of the kernel's;
// 0 once the process hung up.
func (c *line) unread() (bytes int) {
	c.hold(func(fd int) { bytes, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ) })
	return bytes
}

// unheard returns the size of the messages that the broker has not read yet, in bytes: if they are
// late, it is the broker that is.
func (c *line) unheard() (bytes int) {
	c.hold(func(fd int) { bytes, _ = unix.IoctlGetInt(fd, unix.SIOCINQ) })
	return bytes
}

// A mail is room for one message and its answer. Thousands of silent sessions
// cost no buffers: a message has one while it is handled.
type mail struct {
	in     [wire.FrameMax]byte
	out    [wire.HeaderSize + wire.HelloSize]byte
	sender [32]byte // room for the sender's credentials; none for descriptors, which the kernel drops then
	iov    unix.Iovec
	header unix.Msghdr
}

var mails = sync.Pool{New: func() any { return new(mail) }}

// receive reads a message, and returns its size.
func (m *mail) receive(fd int) (int, error) {
	m.iov = unix.Iovec{Base: &m.in[0], Len: uint64(len(m.in))}
	m.header = unix.Msghdr{Iov: &m.iov, Iovlen: 1, Control: &m.sender[0]}
	m.header.SetControllen(len(m.sender))
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.header)),
		unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case errno != 0:
		return 0, errno
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}

// slow reports whether the received message of n bytes is slow to handle.
func (m *mail) slow(n int) bool {
	h, _, err := wire.Decode(m.in[:n])
	return err == nil && operations[h.Type].slow
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
