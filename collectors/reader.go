package collectors

import (
	"context"
	"runtime"
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
	snap   atomic.Pointer[snapshot]
	device atomic.Pointer[gpu.Device]
}

// run reads until ctx ends (nil) or the driver has gone (an error). A lost
// GPU is looked for again every few seconds.
func (r *reader) run(ctx context.Context, lib *gpu.Library) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		err := r.session(ctx, lib)
		ret := gpu.ReturnOf(err)
		if err == nil || gpu.DriverGone(ret) {
			return err
		}
		last := snapshot{id: gpu.ID{Index: r.index, Minor: -1}}
		if s := r.snap.Load(); s != nil {
			last.id = s.id
		}
		r.host.log.Error("gpu lost", "gpu", r.index, "uuid", last.id.UUID, "err", err)
		last.at, last.lost, last.complete = time.Now(), ret, true
		r.snap.Store(&last)
		r.host.moved() // a GPU that is gone holds nothing up
		if !sleep(ctx, retryLost) {
			return nil
		}
	}
}

// session reads one GPU from its opening to its loss, or to the end of ctx.
func (r *reader) session(ctx context.Context, lib *gpu.Library) error {
	s := &session{reader: r, lib: lib, turns: map[*Collector]*turn{}}
	if r.index != hostIndex {
		d, err := lib.Device(r.index)
		if err != nil {
			return err
		}
		defer d.Close()
		s.device, s.prefix = d, []string{strconv.Itoa(d.Index), label(d.UUID)}
		s.id = d.ID
		r.device.Store(d)
		defer r.device.Store(nil)
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
		tick.Reset(time.Until(beat(began, r.host.config.Load().Fast)))
	}
}

// beat returns the next moment to read: a multiple of interval on the wall
// clock, so that all GPUs, here and on other hosts, are read at the same time
// and can be compared; and not much less than an interval away.
func beat(now time.Time, interval time.Duration) time.Time {
	next := now.Truncate(interval).Add(interval)
	if next.Sub(now) < interval/2 {
		next = next.Add(interval)
	}
	return next
}

// A session is what a reader knows from the opening of its GPU on.
type session struct {
	*reader
	lib    *gpu.Library
	device *gpu.Device // nil for the host
	id     gpu.ID
	prefix []string
	config *Config
	active []*Collector
	turns  map[*Collector]*turn
}

// A turn is the standing of one collector within a session.
type turn struct {
	next   time.Time
	read   func(out *Readings)
	totals map[string]float64
	last   *pass
}

// tick gives every collector that is due its turn and publishes the result.
func (s *session) tick(now time.Time) error {
	if c := s.host.config.Load(); c != s.config {
		s.config = c
		s.active = slices.DeleteFunc(c.active(), func(c *Collector) bool { return (c.Host != nil) != (s.device == nil) })
	}
	published := &snapshot{id: s.id, complete: true}
	for _, c := range s.active {
		t := s.turns[c]
		if t == nil {
			t = &turn{totals: map[string]float64{}}
			s.turns[c] = t
		}
		if t.last == nil || (c.Tier != Static && !now.Before(t.next)) {
			if err := s.pass(c, t); err != nil {
				return err
			}
		}
		published.passes = append(published.passes, t.last)
	}
	published.at = time.Now()
	s.snap.Store(published)
	if s.device != nil || len(s.host.state.Load().readers) == 1 {
		s.host.moved() // the host's own reader proves nothing where there are GPUs
	}
	return nil
}

// pass runs one collector. The error is one that ends the session.
func (s *session) pass(c *Collector, t *turn) error {
	out := &Readings{Now: time.Now(), config: s.config, prefix: s.prefix, totals: t.totals}
	if t.read == nil {
		t.read = s.bind(c)
	}
	t.read(out)
	if ret := out.failure; gpu.DriverGone(ret) || gpu.Lost(ret) {
		return gpu.Err(c.Name, ret)
	}
	p := &pass{collector: c, began: out.Now, took: time.Since(out.Now), due: s.config.interval(c.Tier),
		samples: out.samples, failure: out.failure, unsupported: out.unsupported}
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
		s.host.log.Warn("collector failed", "collector", c.Name, "gpu", s.index, "return", gpu.ReturnName(p.failure))
	}
	t.last = p
	s.host.account(p, out.dropped)
	return nil
}

// bind returns c's read for this session's GPU.
func (s *session) bind(c *Collector) func(out *Readings) {
	switch {
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
