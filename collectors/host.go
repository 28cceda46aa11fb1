package collectors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Waits of the host: between tries to open the driver, and for readers to let
// go of it at the end.
const (
	openFirst, openMost = 250 * time.Millisecond, 5 * time.Second
	letGo               = 2 * time.Second
	settle              = 3 * time.Second // after which a hanging GPU no longer holds up readiness
)

// A Host is all GPUs of one host: it opens the driver, runs a reader for each
// GPU, and answers from what they last published. Every method but Run is
// safe for concurrent use and never waits for the driver.
type Host struct {
	nv     nvml.Interface
	log    *slog.Logger
	config atomic.Pointer[Config]
	state  atomic.Pointer[state]
	calls  gpu.Calls

	mu       sync.Mutex // guards what follows
	seen     int        // most GPUs ever seen
	errors   map[collectError]uint64
	dropped  map[string]uint64
	progress time.Time
}

// state is one driver generation, or the lack of a driver. Immutable.
type state struct {
	generation int
	opened     time.Time
	err        error // why there is no driver
	readers    []*reader
}

type collectError struct {
	collector string
	result    nvml.Return
}

// ErrOpening says that nobody knows yet whether there is a driver.
var ErrOpening = errors.New("the driver is being opened")

// NewHost returns a host that reads through nv. The configuration must be
// valid.
func NewHost(nv nvml.Interface, c Config, log *slog.Logger) *Host {
	h := &Host{nv: nv, log: log, errors: map[collectError]uint64{}, dropped: map[string]uint64{}, progress: time.Now()}
	h.config.Store(&c)
	h.state.Store(&state{err: ErrOpening})
	return h
}

// Configure replaces the configuration, from each reader's next turn on.
func (h *Host) Configure(c Config) { h.config.Store(&c) }

// Run reads until ctx ends. It opens the driver as soon as there is one, and
// again after it went away; it returns nil, and an error only where NVML
// could not be closed.
func (h *Host) Run(ctx context.Context) error {
	wait, told := openFirst, ""
	for generation := 0; ; {
		lib, err := gpu.Open(h.nv, &h.calls)
		if err == nil {
			generation++
			wait, told = openFirst, ""
			err = h.generation(ctx, lib, generation)
			if errors.Is(err, errStuck) {
				return nil // a call never came back: NVML cannot be closed, the process may end
			}
			if closed := lib.Close(); closed != nil {
				h.log.Warn("close nvml", "err", closed)
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		h.state.Store(&state{generation: generation, err: err})
		h.moved()
		if told != err.Error() {
			told = err.Error()
			h.log.Error("no driver, trying again", "err", err)
		}
		if !sleep(ctx, wait) {
			return nil
		}
		wait = min(2*wait, openMost)
	}
}

var errStuck = errors.New("a driver call did not return")

// generation reads through one opened driver until ctx ends or it goes away.
func (h *Host) generation(ctx context.Context, lib *gpu.Library, n int) error {
	count, err := lib.Count()
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.seen = max(h.seen, count)
	h.mu.Unlock()
	readers := []*reader{{host: h, index: hostIndex}}
	for i := range count {
		readers = append(readers, &reader{host: h, index: i})
	}
	h.state.Store(&state{generation: n, opened: time.Now(), readers: readers})
	h.log.Info("driver open", "gpus", count, "generation", n)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, r := range readers {
		running.Go(func() {
			if err := r.run(ctx, lib); err != nil {
				cancel(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	<-ctx.Done()
	if !sleepOr(ended, letGo) {
		h.log.Error("a driver call hangs; leaving it behind")
		return errStuck
	}
	return context.Cause(ctx)
}

// sleepOr waits for done, at most d; false when it gave up.
func sleepOr(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// Ready returns nil once every GPU has been read in full, or has had its
// chance; otherwise why not.
func (h *Host) Ready() error {
	s := h.state.Load()
	if s.err != nil {
		return s.err
	}
	for _, r := range s.readers {
		if snap := r.snap.Load(); (snap == nil || !snap.complete) && time.Since(s.opened) < settle {
			return fmt.Errorf("gpu %d has not been read yet", r.index)
		}
	}
	return nil
}

// Beat returns how often the fastest readings change: on multiples of it, on
// the wall clock.
func (h *Host) Beat() time.Duration { return h.config.Load().Fast }

// Driver returns nil while the driver is open, otherwise why not.
func (h *Host) Driver() error { return h.state.Load().err }

// Progress returns when a reader last finished a turn, or the host last
// looked for a driver.
func (h *Host) Progress() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.progress
}

func (h *Host) moved() {
	h.mu.Lock()
	h.progress = time.Now()
	h.mu.Unlock()
}

// account keeps the books of the agent itself.
func (h *Host) account(p *pass, dropped map[*Metric]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.failure != nvml.SUCCESS {
		h.errors[collectError{p.collector.Name, p.failure}]++
	}
	for m, n := range dropped {
		h.dropped[m.Name] += uint64(n)
	}
}

// Samples returns all that is known now: of every GPU what is fresh, and the
// state of the agent itself.
func (h *Host) Samples() []Sample {
	now, s, config := time.Now(), h.state.Load(), h.config.Load()
	out := make([]Sample, 0, 256*(1+len(s.readers)))
	collected := standings{}
	for _, r := range s.readers {
		snap := r.snap.Load()
		up := snap != nil && snap.up(now, config.Fast)
		if r.index != hostIndex {
			out = r.standing(out, snap, now, config.Fast)
		}
		if snap == nil {
			continue
		}
		for _, p := range snap.passes {
			fresh := up && p.fresh(now)
			collected.add(p, fresh && p.failure == nvml.SUCCESS)
			if fresh {
				out = append(out, p.samples...)
				out = p.lacks(out, snap.id)
			}
		}
	}
	return h.self(out, s, collected)
}

// devices returns how many GPUs there are, and how many there should be.
func (h *Host) devices(s *state) (have, expected int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	expected = h.config.Load().Devices
	if expected == 0 {
		expected = h.seen
	}
	return max(0, len(s.readers)-1), expected
}
