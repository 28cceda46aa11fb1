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

// A held lock is the file that ensures that a host has one enforcer.
type held struct {
	file  *os.File
	named bool // the file has our PID
}

// lock ensures that a host has one enforcer: two would undo each other's work.
// It holds dir's enforcer.lock until release is called or the process ends. It
// fails if another process holds it: at once, or after a while if that process has ended.
func lock(dir string) (*held, error) {
	// A child process of an enforcer that was killed has the file until it begins.
	const patience = 2 * time.Second
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		h, holder, err := lockNow(dir)
		if err == nil || holder == 0 || !errors.Is(unix.Kill(holder, 0), unix.ESRCH) || time.Since(began) > patience {
			return h, err
		}
	}
}

// lockNow returns the process that holds the lock as well, if it is known.
func lockNow(dir string) (h *held, holder int, err error) {
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
	if err := file.Truncate(0); err != nil { // it names the one before us
		_ = file.Close()
		return nil, 0, fmt.Errorf("write %s: %w", path, err)
	}
	return &held{file: file}, 0, nil
}

// name writes our PID to the file, once. Only messages need it, and a full disk has no room for it.
func (h *held) name() error {
	if h.named {
		return nil
	}
	_, err := h.file.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	h.named = err == nil
	return err
}

// release gives the lock up. The file stays: otherwise one process could hold the
// removed file and another the new one.
func (h *held) release() {
	_ = unix.Flock(int(h.file.Fd()), unix.LOCK_UN) // a child process that is about to begin has the file too
	_ = h.file.Close()
}
