package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	nvidia "gpusteward/collectors/gpu"
	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// noInstance is NVML's GPU or compute instance of an event outside MIG.
const noInstance = 0xFFFFFFFF

// maxEvents is the size of a set; the oldest events are dropped.
const maxEvents = 256

// subscription is a set's interest in a GPU's events.
type subscription struct {
	set     *eventSet
	types   uint64
	session int
}

// eventSet is an nvml.EventSet.
type eventSet struct {
	host    *Host
	session int
	wake    chan struct{} // holds a token if there may be something new

	mu     sync.Mutex
	gpus   []*gpu
	events []nvml.EventData
	freed  bool
}

// EventSetCreate returns an empty event set.
func (h *Host) EventSetCreate() (nvml.EventSet, nvml.Return) {
	_, session, ret := h.enter("nvmlEventSetCreate")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return &eventSet{host: h, session: session, wake: make(chan struct{}, 1)}, nvml.SUCCESS
}

// GetSupportedEventTypes returns the event types of the model.
func (d *device) GetSupportedEventTypes() (uint64, nvml.Return) {
	return fixed(d, "nvmlDeviceGetSupportedEventTypes", func(m *models.Model) uint64 { return m.EventTypes })
}

// RegisterEvents adds the GPU's events of the given types to a set.
func (d *device) RegisterEvents(types uint64, set nvml.EventSet) nvml.Return {
	return d.ask("nvmlDeviceRegisterEvents", func(g *gpu) nvml.Return {
		s, ok := set.(*eventSet)
		switch {
		case !ok || s.host != g.host:
			return nvml.ERROR_INVALID_ARGUMENT
		case types&^g.model.EventTypes != 0:
			return nvml.ERROR_NOT_SUPPORTED
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.freed {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		if !slices.Contains(s.gpus, g) {
			s.gpus = append(s.gpus, g)
		}
		g.subs = append(g.subs, subscription{s, types, d.session})
		return nvml.SUCCESS
	})
}

// emit adds an event to the sets that subscribe to it.
func (g *gpu) emit(kind, data uint64, gi, ci uint32) {
	for _, sub := range g.subs {
		if sub.types&kind != 0 {
			sub.set.push(nvml.EventData{
				Device:    &device{gpu: g, session: sub.session},
				EventType: kind, EventData: data, GpuInstanceId: gi, ComputeInstanceId: ci,
			})
		}
	}
}

func (s *eventSet) push(e nvml.EventData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) == maxEvents {
		s.events = slices.Delete(s.events, 0, 1)
	}
	s.events = append(s.events, e)
	s.poke()
}

// poke wakes a waiter.
func (s *eventSet) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Wait returns the next event. It blocks for up to timeout milliseconds, then
// returns ERROR_TIMEOUT.
func (s *eventSet) Wait(timeout uint32) (nvml.EventData, nvml.Return) {
	deadline := time.Now().Add(time.Duration(timeout) * time.Millisecond)
	for {
		now := s.host.now()
		e, ret := s.take(now)
		left := time.Until(deadline)
		if ret != nvml.ERROR_TIMEOUT || left <= 0 {
			return e, ret
		}
		timer := time.NewTimer(min(left, s.following(now)-now))
		select {
		case <-timer.C:
		case <-s.wake:
		}
		timer.Stop()
	}
}

// take returns the oldest event by now, or ERROR_TIMEOUT.
func (s *eventSet) take(now time.Duration) (e nvml.EventData, ret nvml.Return) {
	if session, ret := s.host.check(now); ret != nvml.SUCCESS {
		return e, ret
	} else if session != s.session {
		return e, nvml.ERROR_UNINITIALIZED
	}
	for _, g := range s.sources() {
		g.mu.Lock()
		g.advance(now)
		g.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.freed:
		return e, nvml.ERROR_INVALID_ARGUMENT
	case len(s.events) == 0:
		return e, nvml.ERROR_TIMEOUT
	}
	e = s.events[0]
	s.events = slices.Delete(s.events, 0, 1)
	return e, nvml.SUCCESS
}

// sources returns the GPUs that have been registered.
func (s *eventSet) sources() []*gpu {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gpus)
}

// following returns the earliest time after now of a possible event.
func (s *eventSet) following(now time.Duration) time.Duration {
	first := scenarios.Forever
	for i := range s.host.hostwide {
		first = min(first, s.host.hostwide[i].Next(now))
	}
	for _, g := range s.sources() {
		for i := range g.faults {
			first = min(first, g.faults[i].Next(now))
		}
	}
	return first
}

// Free closes the set; a Wait in another goroutine returns.
func (s *eventSet) Free() nvml.Return {
	s.mu.Lock()
	gpus := s.gpus
	s.freed, s.gpus, s.events = true, nil, nil
	s.poke()
	s.mu.Unlock()
	for _, g := range gpus {
		g.mu.Lock()
		g.subs = slices.DeleteFunc(g.subs, func(sub subscription) bool { return sub.set == s })
		g.mu.Unlock()
	}
	return nvml.SUCCESS
}

// xid emits an XID event and logs it in the kernel's log.
func (g *gpu) xid(code uint64, gi, ci *uint32) {
	instance := func(p *uint32) uint32 {
		if p == nil {
			return noInstance
		}
		return *p
	}
	g.emit(nvml.EventTypeXidCriticalError, code, instance(gi), instance(ci))
	occasion := fmt.Sprintf("xid %d", code)
	if phrases()[occasion] == nil {
		occasion = "xid"
	}
	g.say(occasion, code, gi)
}

func (g *gpu) raiseEvent(f *scenarios.Fault) {
	g.emit(nvidia.EventTypes[f.Value], 0, noInstance, noInstance)
}

func (g *gpu) raiseXID(f *scenarios.Fault) {
	g.xid(f.Code, f.GI, f.CI)
	switch f.Code {
	case 94:
		g.emit(nvml.EventTypeNonFatalPoisonError, 0, noInstance, noInstance)
	case 95:
		g.emit(nvml.EventTypeFatalPoisonError, 0, noInstance, noInstance)
	}
}
