package enforcer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lock ensures that a host has one enforcer: two would undo each other's work.
// It holds dir's enforcer.lock until release is called or the process ends. It
// fails if another process holds it: at once, or after a while if that process has ended.
func lock(dir string) (release func(), err error) {
	// A child process of an enforcer that was killed has the file until it begins.
	const patience = 2 * time.Second
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		release, holder, err := lockNow(dir)
		if err == nil || holder == 0 || !errors.Is(unix.Kill(holder, 0), unix.ESRCH) || time.Since(began) > patience {
			return release, err
		}
	}
}

// lockNow returns the process that holds the lock as well, if it is known.
func lockNow(dir string) (release func(), holder int, err error) {
	path := filepath.Join(dir, "enforcer.lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the enforcer's lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer func() { _ = file.Close() }()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, 0, fmt.Errorf("lock %s: %w", path, err)
		}
		text, _ := io.ReadAll(io.LimitReader(file, 32))
		holder, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, 0, fmt.Errorf("another enforcer is running: it holds %s", path)
		}
		return nil, holder, fmt.Errorf("another enforcer is running: process %d holds %s", holder, path)
	}
	// The file stays when we end: otherwise one process could hold the removed
	// file and another the new one.
	pid := fmt.Appendln(nil, os.Getpid())
	if _, err = file.WriteAt(pid, 0); err == nil {
		err = file.Truncate(int64(len(pid)))
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, fmt.Errorf("write %s: %w", path, err)
	}
	return func() {
		_ = unix.Flock(int(file.Fd()), unix.LOCK_UN) // a child process that is about to begin has the file too
		_ = file.Close()
	}, 0, nil
}
