package collectors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/internal/wire"
)

// Timeouts of the host.
const (
	openFirst, openMost = 250 * time.Millisecond, 5 * time.Second // between attempts to open the driver
	letGo               = 2 * time.Second                         // to release the driver, at the end or for a drain
	settle              = 3 * time.Second                         // until a GPU that has not been read counts as down
)

// Options configure a Host.
type Options struct {
	NVML      nvml.Interface
	Config    Config // must be valid
	Processes *host.Table
	// Allocations returns the allocations known now; nil: there are none.
	Allocations func() host.Allocated
	// Books returns the broker's books without its socket; nil: ask at the
	// socket.
	Books  func() (wire.Stats, error)
	Kernel host.Kernel // the kernel's view of the driver and of devices
	// KernelLog follows the kernel's log until ctx ends; nil: there is none.
	KernelLog func(ctx context.Context, each func(host.Record)) error
	StateDir  string // directory of the inventory; empty: the inventory is kept in memory
	ReadOnly  bool   // do not write the inventory
	// Pooled readers need no thread of their own: no call leaves Go, as with
	// simulated GPUs.
	Pooled bool
	// Renew says how to start a new process, if one can open the driver. It is started if this
	// one still cannot: the library was replaced. nil: never.
	Renew func(ctx context.Context) (start func() error, err error)
	// Events is called for each driver event, by the reader that received it:
	// it must not block; nil: events are dropped.
	Events func(Event)
	Log    *slog.Logger
}

// A Host is all GPUs of one host. It opens the driver, runs a reader for each
// GPU, and answers from what the readers last published. Every method but Run
// is safe for concurrent use. Only Run, Drain and Resume wait for the driver.
type Host struct {
	Options
	config    atomic.Pointer[Config]
	state     atomic.Pointer[state]
	calls     gpu.Calls
	caller    gpu.Caller // opens and closes the driver
	inventory inventory
	faults    KernelFaults
	mig       sync.Map    // MIG devices by UUID, as last found
	kernel    []*reader   // readers that need no driver, one for each collector
	reopen    chan string // reasons to reopen the driver
	wake      chan struct{}
	asked     string // the kernel's GPUs for which the driver was opened once more; belongs to Run

	mu       sync.Mutex // guards the fields below
	drain    bool       // the driver should be released
	changed  chan struct{}
	errors   map[collectError]uint64
	dropped  map[string]uint64
	progress time.Time
}

// A state is one driver generation, or the lack of a driver. Immutable.
type state struct {
	generation int
	err        error     // the reason that there is no driver
	readers    []*reader // the host's own first
	before     []*reader // of the previous generation, shown until they are stale
	quiet      time.Time // until then a GPU that was never met does not count as down
}

// Reasons for the lack of a driver, in addition to NVML's errors.
var (
	ErrOpening = errors.New("the driver is being opened")
	ErrDrained = errors.New("drained: gpusteward resume lets the agent use the driver again")
	ErrHanging = errors.New("a driver call has not returned")
	// ErrNoGPUs is the reason that nothing is read of an open driver.
	ErrNoGPUs = errors.New("the driver has no GPUs: nvidia-smi -L shows none either. See lspci -d 10de: for those of the " +
		"host, and NVRM in the kernel log for the reason")

	errNoneListed = errors.New("the driver lists no GPU")

	errReopening = errors.New("the driver is being opened again")
	errStuck     = errors.New("a driver call did not return")
)

// NewHost returns a host; its Run reads the GPUs.
func NewHost(o Options) *Host {
	h := &Host{Options: o, reopen: make(chan string, 1), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		errors: map[collectError]uint64{}, dropped: map[string]uint64{}, progress: time.Now()}
	if h.Allocations == nil {
		h.Allocations = func() host.Allocated { return host.Allocated{} }
	}
	if h.Events == nil {
		h.Events = func(Event) {}
	}
	if h.KernelLog == nil {
		h.faults.failed = fs.ErrNotExist
	}
	h.config.Store(&o.Config)
	h.inventory.load(o.StateDir, o.Log)
	if o.ReadOnly {
		h.inventory.file.Path = ""
	}
	h.state.Store(&state{err: ErrOpening, quiet: time.Now().Add(settle)})
	h.kernel = h.kernelReaders()
	return h
}

// Configure replaces the configuration; each reader uses it from its next turn.
func (h *Host) Configure(c Config) { h.config.Store(&c) }

// Run reads until ctx ends. It opens the driver as soon as there is one,
// reopens it after a loss, and releases it while the host is drained. It
// returns nil even if a driver call never returned: only the end of the process
// ends such a call.
func (h *Host) Run(ctx context.Context) error {
	if h.KernelLog != nil {
		go h.faults.follow(ctx, h.KernelLog)
	}
	for _, r := range h.kernel {
		go r.readKernel(ctx)
	}
	wait, told := openFirst, ""
	for generation := 0; ctx.Err() == nil; {
		if h.draining() {
			h.become(&state{generation: generation, err: ErrDrained})
			h.Log.Info("drained: the driver is released")
			h.await(ctx, h.resumed(ctx))
			h.become(&state{generation: generation, err: ErrOpening, quiet: time.Now().Add(settle)})
			wait, told = openFirst, ""
			continue
		}
		kernel := h.Kernel.Driver()
		lib, err := h.open(ctx)
		if err == nil {
			generation++
			began := time.Now()
			err = h.generation(ctx, lib, generation, kernel)
			if errors.Is(err, errStuck) || !h.close(ctx, lib) {
				return nil
			}
			if time.Since(began) > 2*openMost {
				wait, told = openFirst, ""
			}
		}
		if ctx.Err() != nil || errors.Is(err, ErrDrained) {
			continue
		}
		s := h.state.Load()
		h.become(&state{generation: generation, err: err, before: s.shown(), quiet: s.quiet})
		if errors.Is(err, errReopening) && wait < openMost/2 {
			wait *= 2
			continue // at once, but not repeatedly
		}
		if !errors.Is(err, errReopening) && told != err.Error() {
			told = err.Error()
			h.Log.Error("no driver, retrying", "err", err)
		}
		if h.Renew != nil && gpu.ReturnOf(err) == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
			h.await(ctx, goes(func() {
				if err := h.renew(ctx); err != nil {
					h.Log.Debug("a new process would not help", "err", err)
				}
			}))
		}
		h.pause(ctx, wait)
		wait = min(2*wait, openMost)
	}
	return nil
}

// open opens the driver on its own goroutine, because the call may never
// return.
func (h *Host) open(ctx context.Context) (lib *gpu.Library, err error) {
	if !h.await(ctx, goes(func() {
		lib, err = gpu.Open(h.NVML, &h.calls, &h.caller)
		err = h.explained(err)
	})) {
		return nil, ErrOpening // lib and err still belong to the goroutine
	}
	return lib, err
}

// renew starts a new process if that can open the driver, and this one cannot.
func (h *Host) renew(ctx context.Context) error {
	start, err := h.Renew(ctx)
	if err != nil {
		return err
	}
	if lib, err := gpu.Open(h.NVML, &h.calls, &h.caller); err == nil { // it works again since the failure
		return errors.Join(errors.New("this process can open the driver, too"), lib.Close())
	}
	return start()
}

// explained adds the kernel's explanation to a driver failure that comes from
// the device nodes.
func (h *Host) explained(err error) error {
	var e *gpu.Error
	if errors.As(err, &e) && (gpu.Barred(e.Return) || e.Return == nvml.ERROR_DRIVER_NOT_LOADED) {
		e.Why = h.Kernel.Nodes()
	}
	return err
}

// close closes the driver. It returns false if ctx ended first.
func (h *Host) close(ctx context.Context, lib *gpu.Library) bool {
	return h.await(ctx, goes(func() {
		if err := lib.Close(); err != nil {
			h.Log.Warn("cannot close NVML", "err", err)
		}
	}))
}

// goes runs f on a goroutine, and returns a channel that is closed at its end.
func goes(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	return done
}

// await waits for done, at most letGo beyond the end of ctx, and reports
// whether it was done in time.
func (h *Host) await(ctx context.Context, done <-chan struct{}) bool {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	end := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case <-done:
			return true
		case now := <-tick.C:
			h.moved() // the driver blocks, not the host
			h.overdue(now)
		case <-end:
			t := time.NewTimer(letGo)
			defer t.Stop()
			end, late = nil, t.C
		case <-late:
			return false
		}
	}
}

// hanging is the error for a driver that cannot be opened or closed because a
// call hangs.
type hanging struct{ call string }

func (e hanging) Error() string { return e.call + " has not returned" }

func (e hanging) Is(target error) bool { return target == ErrHanging }

// overdue makes a call that hangs while opening or closing the driver the
// reason for the lack of a driver.
func (h *Host) overdue(now time.Time) {
	s := *h.state.Load()
	if b := h.caller.Busy(); b != nil && now.Sub(b.Since) > letGo && !errors.Is(s.err, hanging{b.Call}) {
		s.err = hanging{b.Call}
		h.become(&s)
		h.Log.Error("a driver call hangs", "call", b.Call)
	}
}

// pause waits for d, until ctx ends, or until Drain or Resume wakes it.
func (h *Host) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-h.wake:
	case <-t.C:
	}
}

// generation reads through one opened driver. It ends with ctx, a lost driver,
// a drain, or a change that requires reopening, and returns once every reader
// has. kernel was read before the driver was opened.
func (h *Host) generation(ctx context.Context, lib *gpu.Library, n int, kernel host.Driver) error {
	var count int
	var err, barred error
	if !h.await(ctx, goes(func() { count, err = lib.Count(); barred = h.Kernel.Nodes() })) {
		return errStuck
	}
	switch {
	case err != nil:
		return err
	case barred != nil && count == 0: // the driver has no other way to say so
		return fmt.Errorf("%w: %w", errNoneListed, barred)
	case barred != nil:
		h.Log.Warn("the driver lists only the GPUs that have device nodes", "gpus", count, "err", barred)
	}
	var readers []*reader
	for i := hostIndex; i < count; i++ {
		readers = append(readers, &reader{host: h, index: i, began: time.Now()})
	}
	h.become(&state{generation: n, readers: readers, before: h.state.Load().shown(), quiet: time.Now().Add(settle)})
	h.Log.Info("driver open", "gpus", count, "generation", n)
	if count == 0 {
		h.Log.Warn(ErrNoGPUs.Error())
	}

	select {
	case <-h.reopen: // meant for the previous generation
	default:
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, r := range readers {
		running.Go(func() {
			if err := r.run(inner, lib.As(&r.caller)); err != nil {
				cancel(err)
			}
		})
	}
	h.watch(inner, cancel, readers, func() string {
		if why := h.Kernel.Driver().Differs(kernel); why != "" {
			return why
		}
		// A GPU that comes or goes while the driver is opened may be on one list only. A
		// difference that stays is a GPU that the driver cannot use; without its device node
		// it cannot use any.
		if n := kernel.Count(); n != 0 && n != count && (barred == nil || n < count) && kernel.GPUs != h.asked {
			h.asked = kernel.GPUs
			return fmt.Sprintf("it lists %d GPUs, and the kernel drives %d", count, n)
		}
		if barred == nil {
			return ""
		}
		if now := h.Kernel.Nodes(); now == nil || now.Error() != barred.Error() {
			return "device nodes appeared or disappeared"
		}
		return ""
	})
	h.inventory.save(h.Log)
	if !h.letGo(ctx, goes(running.Wait), readers, context.Cause(inner)) {
		return errStuck
	}
	return context.Cause(inner)
}

// watch supervises one generation until something ends it, such as a reason
// from differs.
func (h *Host) watch(ctx context.Context, cancel context.CancelCauseFunc, readers []*reader, differs func() string) {
	for ctx.Err() == nil {
		h.pause(ctx, h.Interval())
		now := time.Now()
		if h.draining() {
			cancel(ErrDrained)
			return
		}
		stuck, alive := 0, 0
		for _, r := range readers {
			if _, hangs := r.hangs(now); hangs {
				stuck++
			} else if r.moves(now) {
				alive++
			}
		}
		if stuck+alive == len(readers) {
			h.moved() // a reader that does not move hangs in the driver, and a restart would not help
		}
		h.inventory.save(h.Log)
		why := differs()
		select {
		case why = <-h.reopen:
		default:
		}
		// NVML knows only the GPUs present when it was opened, and cannot be
		// closed while a call hangs.
		if why != "" && stuck == 0 {
			h.Log.Warn("reopening the driver", "why", why)
			cancel(fmt.Errorf("%w: %s", errReopening, why))
		}
	}
}

// letGo waits for the readers to end, and reports whether they did before ctx.
// Readers that hang in the driver keep NVML from being closed; the state then
// says so.
func (h *Host) letGo(ctx context.Context, ended <-chan struct{}, readers []*reader, cause error) bool {
	t := time.NewTimer(letGo)
	defer t.Stop()
	select {
	case <-ended:
		return true
	case <-t.C:
	}
	if ctx.Err() != nil {
		h.Log.Error("a driver call hangs; abandoning it")
		return false
	}
	s := *h.state.Load()
	s.err = h.held(readers)
	if !errors.Is(cause, ErrDrained) {
		s.err = fmt.Errorf("%w; %w", cause, s.err)
	}
	h.become(&s)
	h.Log.Error("the driver cannot be closed yet", "err", s.err)
	return h.await(ctx, ended)
}

// held returns the obstacle to closing NVML.
func (h *Host) held(readers []*reader) error {
	for _, r := range readers {
		if call, hangs := r.hangs(time.Now()); hangs {
			return fmt.Errorf("gpu %d hangs in %s: NVML stays open until that returns", r.index, call)
		}
	}
	return errStuck
}

// Ready returns nil once every GPU has been read in full or has had enough
// time; otherwise the reason.
func (h *Host) Ready() error {
	s := h.state.Load()
	if errors.Is(s.err, errReopening) {
		return nil
	}
	if s.err != nil {
		return s.err
	}
	if !slices.ContainsFunc(s.readers, func(r *reader) bool { return r.index != hostIndex }) {
		return ErrNoGPUs
	}
	for _, r := range s.readers {
		if snap := s.snapshot(r); (snap == nil || !snap.complete) && time.Now().Before(s.quiet) {
			return fmt.Errorf("gpu %d has not been read yet", r.index)
		}
	}
	return nil
}

// Interval returns the fast interval. Readings happen at its multiples on the wall
// clock.
func (h *Host) Interval() time.Duration { return h.config.Load().Fast }

// Driver returns nil while the driver is open, otherwise the reason.
func (h *Host) Driver() error {
	if err := h.state.Load().err; !errors.Is(err, errReopening) {
		return err
	}
	return nil
}

// Progress returns when the host last did its work: it read every GPU that does
// not hang in the driver, or looked for a driver.
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

// become makes s the state, and notifies the waiters.
func (h *Host) become(s *state) {
	h.state.Store(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progress = time.Now()
	close(h.changed)
	h.changed = make(chan struct{})
}
