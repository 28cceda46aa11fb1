package procs

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Accept waits for the next connection at a listening socket, and returns its descriptor, which does not block and is
// closed by exec. It costs less than a net.Conn, for those who close most connections at once. none is called each time
// that no connection waits. An error is that of the system call, such as a lack of descriptors, or os.ErrClosed.
func Accept(at syscall.RawConn, none func()) (fd int, err error) {
	var errno syscall.Errno
	if err := at.Read(func(l uintptr) bool {
		var n uintptr
		for {
			n, _, errno = unix.RawSyscall6(unix.SYS_ACCEPT4, l, 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
			if errno != unix.ECONNABORTED && errno != unix.EINTR {
				break
			}
		}
		if fd = int(n); errno == unix.EAGAIN {
			none()
			return false
		}
		return true
	}); err != nil {
		return 0, err
	}
	if errno != 0 {
		return 0, errno
	}
	return fd, nil
}
