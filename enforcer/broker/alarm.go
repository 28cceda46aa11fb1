package broker

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An alarm rings at a time of CLOCK_MONOTONIC. It uses a timer of the kernel,
// not of the runtime: whenever a runtime timer is due, a second thread wakes to
// look for more work, which costs as much as the rest of a turn's end.
type alarm struct {
	file *os.File
	raw  syscall.RawConn
	at   time.Duration // 0 not at all
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make alarm: %w", err)
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "alarm")}
	if a.raw, err = a.file.SyscallConn(); err != nil {
		_ = a.file.Close()
		return nil, fmt.Errorf("make alarm: %w", err)
	}
	return a, nil
}

// set changes the time of the alarm; after Close it does nothing.
func (a *alarm) set(at time.Duration) {
	if a.at == at {
		return
	}
	a.at = at
	when := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	_ = a.raw.Control(func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &when, nil) })
}

// serve calls ring whenever the alarm does, until Close.
func (a *alarm) serve(ring func()) {
	var times uint64
	_ = a.raw.Read(func(fd uintptr) bool {
		_, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&times)), unsafe.Sizeof(times))
		if errno == 0 {
			ring()
		}
		return false
	})
}

func (a *alarm) Close() error { return a.file.Close() }
