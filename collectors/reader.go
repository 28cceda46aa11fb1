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

// hostIndex is the index of the reader for everything that belongs to no GPU.
const hostIndex = -1

// retryLost is the pause between attempts to find a lost GPU.
const retryLost = 5 * time.Second

// A reader owns one GPU. It alone calls NVML for it, from one thread, and
// publishes the readings. It may hang in the driver without harm to others.
type reader struct {
	host  *Host
	index int
	// only is the reader's single collector, which needs no driver; nil: the
	// collectors of its GPU or of the host.
	only   *Collector
	began  time.Time
	snap   atomic.Pointer[snapshot]
	peer   atomic.Pointer[gpu.Peer] // nil until known
	caller gpu.Caller
}

// hangs reports whether r waits for an overdue driver call, and names the call.
func (r *reader) hangs(now time.Time) (call string, yes bool) {
	b := r.caller.Busy()
	if b == nil || now.Sub(b.Since) <= 2*r.host.Interval() {
		return "", false
	}
	return b.Call, true
}

// moves reports whether r completed a turn recently, or looked for a lost GPU.
func (r *reader) moves(now time.Time) bool {
	at := r.began
	if s := r.snap.Load(); s != nil {
		at = s.at
	}
	return now.Sub(at) <= 2*max(r.host.Interval(), retryLost)
}

// run reads until ctx ends (nil) or the driver is gone (an error). It looks for
// a lost GPU every few seconds.
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

// session reads one GPU until the GPU is lost or ctx ends.
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
// clock, and not much less than an interval away. Thus all GPUs, here and on
// other hosts, are read at the same time and can be compared. The result keeps
// the monotonic clock of now, so setting the wall clock delays no reader.
func nextRead(now time.Time, interval time.Duration) time.Time {
	next := now.Add(interval - now.Sub(now.Truncate(interval)))
	if next.Sub(now) < interval/2 {
		next = next.Add(interval)
	}
	return next
}

// A session is the state of a reader since its GPU was opened.
type openGPU struct {
	*reader
	lib    *gpu.Library
	device *gpu.Device // nil for the host
	known  *knownGPU
	lost   bool // it was lost before this session; cleared once the log says that it is back
	prefix []string
	config *Config
	active []*Collector
	states map[*Collector]*collectorState
}

// A turn is the state of one collector within a session.
type collectorState struct {
	next   time.Time
	read   func(out *Readings)
	totals map[string]float64
	last   *pass
}

// tick runs every collector that is due, and publishes the results.
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
			if err := s.pass(c, t, now); err != nil {
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
	for _, p := range published.passes {
		if p.ended.IsZero() {
			p.ended = published.at
		}
	}
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

// count asks for the driver to be reopened if it no longer lists the same
// number of GPUs.
func (s *openGPU) count() {
	n, err := s.lib.Count()
	if was := len(s.host.state.Load().readers) - 1; err == nil && n != was {
		s.host.again(fmt.Sprintf("the driver lists %d GPUs instead of %d", n, was))
	}
}

// pass runs one collector in the turn that began at turn. An error ends the session.
func (s *openGPU) pass(c *Collector, t *collectorState, turn time.Time) error {
	out := &Readings{Now: time.Now(), Config: s.config, Processes: s.host.Processes, Peers: s.host.peers,
		Known: s.host.inventory.all, Allocations: s.host.Allocations, Books: s.host.Books, Events: s.host.Events,
		Faults: &s.host.faults, Prefix: s.prefix, Totals: t.totals}
	s.read(c, t, out)
	if ret := out.Failure; gpu.DriverGone(ret) || gpu.Lost(ret) {
		return gpu.Err(c.Name, ret)
	}
	p := &pass{collector: c, began: out.Now, took: time.Since(out.Now), due: s.config.interval(c.Tier),
		samples: out.Samples, failure: out.Failure, unsupported: out.Unsupported, Facts: out.Facts}
	if len(p.samples) == 0 && len(p.unsupported) > 0 && p.failure == nvml.SUCCESS && c.Tier != Static {
		p.due = s.config.Slow // this GPU has none of it: retry occasionally
	}
	// A pass is due slightly early rather than a whole tick late, however late it was in
	// this turn, and this turn in its interval: else a slow call, or a busy machine, would
	// leave it out in the next one. GPUs take their expensive turns one after the other,
	// because concurrent calls slow each other down in the driver.
	wait := p.due
	if gpus := len(s.host.state.Load().readers) - 1; t.last == nil && s.device != nil && gpus > 0 {
		wait = p.due * time.Duration(s.index+1) / time.Duration(gpus)
	}
	late := turn.Sub(turn.Truncate(s.config.Fast)) // see nextRead
	t.next = turn.Add(wait - late - s.config.Fast/10)
	if t.last != nil && t.last.failure == nvml.SUCCESS && p.failure != nvml.SUCCESS {
		s.host.Log.Warn("collector failed", "collector", c.Name, "gpu", s.index, "return", gpu.ReturnName(p.failure))
	}
	t.last = p
	s.host.account(p, out.Dropped)
	return nil
}

// read runs c's read. A panic, which a faulty library can cause, counts as a
// failure of that collector.
func (s *openGPU) read(c *Collector, t *collectorState, out *Readings) {
	defer func() {
		if p := recover(); p != nil {
			s.caller.Recover()
			if t.last == nil || t.last.failure != nvml.ERROR_UNKNOWN {
				s.host.Log.Error("collector panicked", "collector", c.Name, "gpu", s.index, "panic", p,
					"stack", string(debug.Stack()))
			}
			out.Samples, out.MIG, t.read = nil, nil, nil
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

// sleep waits for d, and returns false if ctx ended first.
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
