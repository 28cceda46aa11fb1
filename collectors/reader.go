package collectors

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// hostIndex is the index of the reader that reads what belongs to no GPU.
const hostIndex = -1

// retryLost is how long a reader waits before it looks for a lost GPU again.
const retryLost = 5 * time.Second

// A reader owns one GPU: it alone calls NVML for it, from one thread, and
// publishes what it read. It may hang in the driver without harm to others.
type reader struct {
	host   *Host
	index  int
	only   *Collector // the one that it reads, which needs no driver; nil: those of its GPU or the host
	began  time.Time
	snap   atomic.Pointer[snapshot]
	peer   atomic.Pointer[gpu.Peer] // once it is known
	caller gpu.Caller
}

// hangs reports whether r waits for a driver call that is overdue, and for
// which.
func (r *reader) hangs(now time.Time) (call string, yes bool) {
	b := r.caller.Busy()
	if b == nil || now.Sub(b.Since) <= 2*r.host.Interval() {
		return "", false
	}
	return b.Call, true
}

// moves reports whether r came round lately, or looked for a lost GPU.
func (r *reader) moves(now time.Time) bool {
	at := r.began
	if s := r.snap.Load(); s != nil {
		at = s.at
	}
	return now.Sub(at) <= 2*max(r.host.Interval(), retryLost)
}

// run reads until ctx ends (nil) or the driver has gone (an error). A lost
// GPU is looked for again every few seconds.
func (r *reader) run(ctx context.Context, lib *gpu.Library) error {
	if !r.host.Pooled {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	for {
		err := r.host.explained(r.readUntilLost(ctx, lib))
		ret := gpu.ReturnOf(err)
		if err == nil || gpu.DriverGone(ret) {
			return err
		}
		before := r.snap.Load()
		if before == nil || before.lost != ret {
			r.host.Log.Error("gpu lost", "gpu", r.index, "err", err)
		}
		r.snap.Store(&snapshot{at: time.Now(), lost: ret, complete: true})
		if r.index == hostIndex || r.host.allLost() {
			r.host.again("nothing answers: " + err.Error())
		}
		if !sleep(ctx, retryLost) {
			return nil
		}
	}
}

// readUntilLost reads one GPU from its opening to its loss, or to the end of
// ctx.
func (r *reader) readUntilLost(ctx context.Context, lib *gpu.Library) error {
	s := &openGPU{reader: r, lib: lib, states: map[*Collector]*collectorState{}}
	if snap := r.snap.Load(); snap != nil {
		s.lost = snap.lost != nvml.SUCCESS
	}
	if r.index != hostIndex {
		d, err := lib.Device(r.index)
		if err != nil {
			return err
		}
		defer d.Close()
		d.UUID = label(d.UUID)
		s.device, s.prefix = d, []string{strconv.Itoa(d.Index), d.UUID}
		s.known = r.host.inventory.saw(d.ID)
		r.peer.Store(d.Peer())
	} else {
		s.known = &knownGPU{totals: map[*Collector]map[string]float64{}}
	}
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		began := time.Now()
		if err := s.tick(began); err != nil {
			return err
		}
		if s.lost {
			r.host.Log.Info("gpu back", "gpu", r.index)
			s.lost = false
		}
		tick.Reset(time.Until(nextRead(began, r.host.config.Load().Fast)))
	}
}

// nextRead returns the next moment to read: a multiple of interval on the wall
// clock, so that all GPUs, here and on other hosts, are read at the same time
// and can be compared; and not much less than an interval away. It keeps the
// monotonic clock of now: a wall clock that is set meanwhile makes nobody wait.
func nextRead(now time.Time, interval time.Duration) time.Time {
	next := now.Add(interval - now.Sub(now.Truncate(interval)))
	if next.Sub(now) < interval/2 {
		next = next.Add(interval)
	}
	return next
}

// An openGPU is what a reader knows from the opening of its GPU on.
type openGPU struct {
	*reader
	lib    *gpu.Library
	device *gpu.Device // nil for the host
	known  *knownGPU
	lost   bool // until now
	prefix []string
	config *Config
	active []*Collector
	states map[*Collector]*collectorState
}

// A collectorState is the state of one collector while the GPU is open.
type collectorState struct {
	next   time.Time
	read   func(out *Readings)
	totals map[string]float64
	last   *pass
}

// tick runs every collector that is due and publishes the result.
func (s *openGPU) tick(now time.Time) error {
	if c := s.host.config.Load(); c != s.config {
		s.config = c
		s.active = slices.DeleteFunc(c.active(), func(c *Collector) bool { return !s.reads(c) })
	}
	published := &snapshot{complete: true}
	s.caller.Good, s.caller.Barred = 0, 0
	barred := nvml.SUCCESS
	for _, c := range s.active {
		t := s.states[c]
		if t == nil {
			t = &collectorState{totals: s.known.totals[c]}
			if t.totals == nil {
				t.totals = map[string]float64{}
				s.known.totals[c] = t.totals
			}
			s.states[c] = t
		}
		if t.last == nil || (c.Tier != Static && !now.Before(t.next)) {
			if err := s.pass(c, t); err != nil {
				return err
			}
			if gpu.Barred(t.last.failure) {
				barred = t.last.failure
			}
		}
		published.passes = append(published.passes, t.last)
	}
	if s.caller.Barred > s.caller.Good && barred != nvml.SUCCESS {
		return gpu.Err("most readings", barred)
	}
	published.at = time.Now()
	s.snap.Store(published)
	if s.device == nil && s.only == nil {
		s.count()
	}
	return nil
}

// reads reports whether c is one of the collectors of the open GPU.
func (s *openGPU) reads(c *Collector) bool {
	switch {
	case s.only != nil:
		return c == s.only
	case s.device != nil:
		return c.ofGPU()
	}
	return c.Host != nil
}

// count has the driver opened again where it no longer lists the GPUs that it
// listed then.
func (s *openGPU) count() {
	n, err := s.lib.Count()
	if was := len(s.host.state.Load().readers) - 1; err == nil && n != was {
		s.host.again(fmt.Sprintf("the driver lists %d GPUs instead of %d", n, was))
	}
}

// pass runs one collector. The error is one after which the GPU is opened again.
func (s *openGPU) pass(c *Collector, t *collectorState) error {
	out := &Readings{Now: time.Now(), config: s.config, processes: s.host.Processes, gpus: s.host.peers, known: s.host.inventory.all, allocations: s.host.Allocations, books: s.host.Books, events: s.host.Events, faults: &s.host.faults, prefix: s.prefix, totals: t.totals}
	s.read(c, t, out)
	if ret := out.failure; gpu.DriverGone(ret) || gpu.Lost(ret) {
		return gpu.Err(c.Name, ret)
	}
	p := &pass{collector: c, began: out.Now, took: time.Since(out.Now), due: s.config.interval(c.Tier),
		samples: out.samples, failure: out.failure, unsupported: out.unsupported, holders: out.holders, stays: out.stays}
	if len(p.samples) == 0 && len(p.unsupported) > 0 && p.failure == nvml.SUCCESS && c.Tier != Static {
		p.due = s.config.Slow // this GPU has none of it: ask again now and then
	}
	// A little early rather than a whole tick late; and GPUs take their dear
	// turns one after the other, since the driver makes those that ask at once
	// pay for each other.
	wait := p.due
	if gpus := len(s.host.state.Load().readers) - 1; t.last == nil && s.device != nil && gpus > 0 {
		wait = p.due * time.Duration(s.index+1) / time.Duration(gpus)
	}
	t.next = out.Now.Add(wait - s.config.Fast/10)
	if t.last != nil && t.last.failure == nvml.SUCCESS && p.failure != nvml.SUCCESS {
		s.host.Log.Warn("collector failed", "collector", c.Name, "gpu", s.index, "return", gpu.ReturnName(p.failure))
	}
	t.last = p
	s.host.account(p, out.dropped)
	return nil
}

// read has c read. What a library that lies makes panic is one collector's
// failure.
func (s *openGPU) read(c *Collector, t *collectorState, out *Readings) {
	defer func() {
		if p := recover(); p != nil {
			s.caller.Recover()
			if t.last == nil || t.last.failure != nvml.ERROR_UNKNOWN {
				s.host.Log.Error("collector panicked", "collector", c.Name, "gpu", s.index, "panic", p, "stack", string(debug.Stack()))
			}
			out.samples, t.read = nil, nil
			out.Fail(nvml.ERROR_UNKNOWN)
		}
	}()
	if t.read == nil {
		t.read = s.bind(c)
	}
	t.read(out)
}

// bind returns c's read for the open GPU.
func (s *openGPU) bind(c *Collector) func(out *Readings) {
	switch {
	case c.Kernel != nil:
		return c.Kernel(s.host.Kernel)
	case c.Host != nil:
		return c.Host(s.lib)
	case c.Open != nil:
		read := c.Open(s.device)
		return func(out *Readings) { read(s.device, out) }
	}
	return func(out *Readings) { c.Read(s.device, out) }
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
