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

	"gpusteward/collectors/host"
)

// lockFile takes the lock at path. It fails at once with a host.Locked if another process has
// it. A process that was killed keeps its files, and thus the lock, while one of its
// threads hangs in the driver: this may last for ever, and the host needs an agent. The file
// of such a process is replaced.
func lockFile(path string) (*host.Lock, error) {
	dir, err := host.LockDir(filepath.Dir(path)) // against another one that replaces the file
	if err != nil {
		return nil, err
	}
	defer dir.Release()
	lock, err := host.TakeLock(path, 0o640)
	if held := new(host.Locked); errors.As(err, &held) && held.Holder != 0 && abandoned(held.Holder) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		lock, err = host.TakeLock(path, 0o640)
	}
	if err != nil {
		return nil, err
	}
	_ = lock.Name() // without that, nobody takes it for abandoned
	return lock, nil
}

// isLocked reports whether an error means that another agent has the lock.
func isLocked(err error) bool { held := new(host.Locked); return errors.As(err, &held) }

// abandoned reports whether a process has ended or was killed. It reports false if that is unknown.
func abandoned(pid int) bool {
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
