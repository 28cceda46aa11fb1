package enforcer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lock ensures that a host has one enforcer: two would undo each other's work.
// It holds dir's enforcer.lock until release is called or the process ends, and
// fails at once if another process holds it.
func lock(dir string) (release func(), err error) {
	path := filepath.Join(dir, "enforcer.lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the enforcer's lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer func() { _ = file.Close() }()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		holder, _ := io.ReadAll(io.LimitReader(file, 32))
		pid, err := strconv.Atoi(strings.TrimSpace(string(holder)))
		if err != nil {
			return nil, fmt.Errorf("another enforcer is running: it holds %s", path)
		}
		return nil, fmt.Errorf("another enforcer is running: process %d holds %s", pid, path)
	}
	// The file stays when we end: otherwise one process could hold the removed
	// file and another the new one.
	pid := fmt.Appendln(nil, os.Getpid())
	if _, err = file.WriteAt(pid, 0); err == nil {
		err = file.Truncate(int64(len(pid)))
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return func() {
		_ = unix.Flock(int(file.Fd()), unix.LOCK_UN) // a child process that is about to begin has the file too
		_ = file.Close()
	}, nil
}
