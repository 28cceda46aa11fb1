package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Lock is a file that one process at a time holds, until it releases the lock
// or ends. The file says which process that is.
type Lock struct {
	file  *os.File
	named bool
}

// A Locked is the error of a lock that another process holds.
type Locked struct {
	Path   string
	Holder int // its PID; 0: unknown, or of another namespace
}

func (l *Locked) Error() string { return "another process holds " + l.Path }

// TakeLock takes the lock at path, which it creates if needed. It never waits.
func TakeLock(path string, mode fs.FileMode) (*Lock, error) {
	l, err := openLock(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, err
	}
	if err := l.file.Truncate(0); err != nil { // it names the one before us
		l.Release()
		return nil, err
	}
	return l, nil
}

// LockDir takes a directory as a lock.
func LockDir(dir string) (*Lock, error) { return openLock(dir, os.O_RDONLY|unix.O_DIRECTORY, 0) }

func openLock(path string, how int, mode fs.FileMode) (*Lock, error) {
	file, err := os.OpenFile(path, how, mode)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		return &Lock{file: file}, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = &Locked{path, holder(file)}
	default:
		err = fmt.Errorf("lock %s: %w", path, err)
	}
	_ = file.Close() // it holds nothing
	return nil, err
}

// holder returns the process that the file names, if it is of our namespace.
func holder(file *os.File) int {
	var text [64]byte
	n, _ := file.ReadAt(text[:], 0) // a directory has none
	number, space, _ := strings.Cut(strings.TrimSpace(string(text[:n])), " ")
	pid, err := strconv.Atoi(number)
	if err != nil || space != "" && space != pidNamespace() { // older versions wrote none
		return 0
	}
	return pid
}

func pidNamespace() string {
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "unknown"
	}
	return space
}

// Name writes our PID to the file, once, with the namespace in which it is one. A
// lock without that, as on a full disk, is one all the same.
func (l *Lock) Name() error {
	if l.named {
		return nil
	}
	_, err := l.file.WriteAt(fmt.Appendf(nil, "%d %s\n", os.Getpid(), pidNamespace()), 0)
	l.named = err == nil
	return err
}

// Release gives the lock up. The file stays: otherwise one process could hold the
// removed file and another the new one.
func (l *Lock) Release() {
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN) // a child process that is about to begin has the file too
	_ = l.file.Close()
}
