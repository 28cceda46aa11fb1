package collectors

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Drain releases NVML and every handle, so that a GPU can be reset,
// repartitioned or given to a virtual machine, or its driver unloaded. It
// returns once that is done. After 2 s it returns an error that names the
// obstacle, and the driver is released as soon as that is gone. The host stays
// drained until Resume, or until the agent ends.
func (h *Host) Drain(ctx context.Context) error {
	h.want(true)
	if h.until(ctx, letGo+time.Second, func(s *state) bool { return errors.Is(s.err, ErrDrained) }) {
		return nil
	}
	s := h.state.Load()
	if b := h.caller.Busy(); b != nil {
		return fmt.Errorf("not drained yet: %w", hanging{b.Call})
	}
	return fmt.Errorf("not drained yet: %w", h.held(s.readers))
}

// Resume opens the driver again. It returns once the driver is open, or after
// 5 s with the reason for the failure; the host continues to retry.
func (h *Host) Resume(ctx context.Context) error {
	h.want(false)
	if h.until(ctx, openMost, func(s *state) bool { return s.err == nil }) {
		return nil
	}
	if err := h.state.Load().err; err != nil {
		return fmt.Errorf("resumed, but there is no driver yet: %w", err)
	}
	return nil
}

// want records whether the driver should be released.
func (h *Host) want(drain bool) {
	h.mu.Lock()
	h.drain = drain
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *Host) draining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.drain
}

// resumed returns a channel that is closed when the host should open the driver
// again, or when ctx ends.
func (h *Host) resumed(ctx context.Context) <-chan struct{} {
	return goes(func() {
		for h.draining() && ctx.Err() == nil {
			h.pause(ctx, time.Minute)
		}
	})
}

// until waits at most d for the requested state, and reports whether it was
// reached.
func (h *Host) until(ctx context.Context, d time.Duration, is func(*state) bool) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		if is(h.state.Load()) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-t.C:
			return false
		}
	}
}
