package sim

import (
	"cmp"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// driver returns the driver's answers to Init and to the calls of a session at
// t, and the number of unloads until then.
func (h *Host) driver(t time.Duration) (init, calls nvml.Return, unloads int) {
	for i := range h.hostwide {
		f := &h.hostwide[i]
		e := effects[f.Kind]
		if e.session != nvml.SUCCESS && f.Begun(t) > 0 {
			unloads++
		}
		if _, _, active := f.Window(t); active {
			init, calls = cmp.Or(init, e.init), cmp.Or(calls, e.session)
		}
	}
	return init, calls, unloads
}

// admit waits while a call is blocked. It returns the time of the answer, or
// the reason that there is none. verdict returns, for a time, the end of the
// blocking or the call's return code.
func (h *Host) admit(verdict func(t time.Duration) (time.Duration, nvml.Return)) (time.Duration, nvml.Return) {
	for {
		now := h.now()
		until, ret := verdict(now)
		if until == 0 {
			return now, ret
		}
		if !h.wait(until - now) {
			return now, nvml.ERROR_UNKNOWN
		}
	}
}

// wait blocks for a simulated duration, and returns false if the host was
// closed.
func (h *Host) wait(t time.Duration) bool {
	var over <-chan time.Time // never, for a window without end
	if t < scenarios.Forever/2 {
		timer := time.NewTimer(t)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return true
	case <-h.closed:
		return false
	}
}

// reach is admit for a call on the host.
func (h *Host) reach(call string) (time.Duration, nvml.Return) {
	return h.admit(func(t time.Duration) (time.Duration, nvml.Return) { return strike(h.named, call, t) })
}

// enter is reach for a call that needs a session, whose number it returns.
func (h *Host) enter(call string) (now time.Duration, session int, ret nvml.Return) {
	if now, ret = h.reach(call); ret == nvml.SUCCESS {
		session, ret = h.check(now)
	}
	return now, session, ret
}

// check returns the number of the open session. A session ends with its driver.
func (h *Host) check(t time.Duration) (session int, ret nvml.Return) {
	_, ret, unloads := h.driver(t)
	h.mu.RLock()
	defer h.mu.RUnlock()
	switch {
	case h.refs == 0:
		return 0, nvml.ERROR_UNINITIALIZED
	case ret != nvml.SUCCESS:
		return 0, ret
	case unloads != h.loads:
		return 0, nvml.ERROR_UNINITIALIZED
	}
	return h.session, nvml.SUCCESS
}

// Init begins a session, or joins the open one. It fails while the driver or
// its device nodes are gone. Handles of a session whose driver went away stay
// invalid.
func (h *Host) Init() nvml.Return {
	now, ret := h.reach("nvmlInit")
	if ret != nvml.SUCCESS {
		return ret
	}
	ret, _, unloads := h.driver(now)
	if ret != nvml.SUCCESS {
		return ret
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refs == 0 || h.loads != unloads {
		h.refs, h.loads = 0, unloads
		h.session++
	}
	h.refs++
	return nvml.SUCCESS
}

// InitWithFlags is Init; the flags change nothing here.
func (h *Host) InitWithFlags(uint32) nvml.Return { return h.Init() }

// Shutdown leaves the session.
func (h *Host) Shutdown() nvml.Return {
	if _, ret := h.reach("nvmlShutdown"); ret != nvml.SUCCESS {
		return ret
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refs == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	h.refs--
	return nvml.SUCCESS
}
