package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// errLocked is the failure of a second agent on one directory.
var errLocked = errors.New("another agent writes it; --state.dir takes another directory")

// lockFile locks the file for this process alone. It fails at once with errLocked if another
// one has it. A process that was killed keeps its files, and thus the lock, while one of its
// threads hangs in the driver: this may last for ever, and the host needs an agent. The file
// of such a process is replaced.
func lockFile(path string) (*os.File, error) {
	dir, err := lockNow(filepath.Dir(path), os.O_RDONLY) // against another one that replaces the file
	if err != nil {
		return nil, err
	}
	defer unlock(dir)
	file, err := lockNow(path, os.O_RDWR|os.O_CREATE)
	if errors.Is(err, errLocked) && abandoned(path) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		file, err = lockNow(path, os.O_RDWR|os.O_CREATE)
	}
	if err != nil {
		return nil, err
	}
	if err := own(file); err != nil {
		unlock(file)
		return nil, err
	}
	return file, nil
}

func lockNow(path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, how, 0o640)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close() // it holds nothing
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errLocked
		}
		return nil, err
	}
	return file, nil
}

func unlock(file *os.File) {
	_ = unix.Flock(int(file.Fd()), unix.LOCK_UN) // a child process that is about to begin has the file too
	_ = file.Close()                             // nothing is written that matters any more
}

// own writes into the file that it is ours: the PID, and the namespace in which it is one. A
// file that does not say so, as on a full disk, is a lock all the same.
func own(file *os.File) error {
	if err := file.Truncate(0); err != nil { // it may name an agent that has ended
		return err
	}
	space, _ := os.Readlink("/proc/self/ns/pid") // empty: nobody takes the file for abandoned
	_, _ = file.WriteAt(fmt.Appendf(nil, "%d %s\n", os.Getpid(), space), 0)
	return nil
}

// abandoned reports whether the process that locked the file has ended or was killed. It
// reports false if that is unknown.
func abandoned(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	number, space, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(number)
	if ours, failed := os.Readlink("/proc/self/ns/pid"); err != nil || failed != nil || space != ours {
		return false
	}
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && killed(status)
}

// killed reports whether a process, whose /proc/PID/status this is, has ended or cannot go on:
// its first thread has ended, as the others have or soon will, or SIGKILL waits for it.
func killed(status []byte) bool {
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		switch name {
		case "State":
			if value != "" && strings.ContainsRune("ZXx", rune(value[0])) {
				return true
			}
		case "SigPnd", "ShdPnd":
			pending, err := strconv.ParseUint(value, 16, 64)
			if err == nil && pending>>(unix.SIGKILL-1)&1 == 1 {
				return true
			}
		}
	}
	return false
}
