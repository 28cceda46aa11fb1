package enforcer

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/collectors/host"
)

// lock ensures that a host has one enforcer: two would undo each other's work.
// It takes dir's enforcer.lock. It fails if another process holds that: at once,
// or after a while if that process has ended.
func lock(dir string) (*host.Lock, error) {
	// A child process of an enforcer that was killed has the file until it begins.
	const patience = 2 * time.Second
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		l, err := host.TakeLock(filepath.Join(dir, "enforcer.lock"), 0o600)
		var held *host.Locked
		switch {
		case err == nil:
			return l, nil
		case !errors.As(err, &held):
			return nil, fmt.Errorf("take the enforcer's lock: %w", err)
		case held.Holder == 0:
			return nil, fmt.Errorf("another enforcer is running: it holds %s", held.Path)
		case !errors.Is(unix.Kill(held.Holder, 0), unix.ESRCH) || time.Since(began) > patience:
			return nil, fmt.Errorf("another enforcer is running: process %d holds %s", held.Holder, held.Path)
		}
	}
}
