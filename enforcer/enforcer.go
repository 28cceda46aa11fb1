package enforcer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/backend"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/profile"
	"gpusteward/enforcer/response"
	"gpusteward/enforcer/suspend"
	"gpusteward/enforcer/swap"
	"gpusteward/internal/wire"
)

// settle is the time, at a tick of a second, that suspend.Mover.Settle is.
const settle = 5 * time.Second

// Options configure an Enforcer. The functions must not wait, and may be called
// concurrently.
type Options struct {
	Tick      audit.Tick // from one look to the next
	Policy    *policy.Policy
	Broker    broker.Options // without what the enforcer itself sets: Policy, Owner, Capacity, Enforcer; Spans has the enforcer's, too
	Dir       string         // of one enforcer only, created if necessary
	StateFile string         // state that outlives a restart: the paused and suspended workloads; empty: none
	CrashDir  string         // of the records of crashes, of root; empty: none is kept
	// follows the kernel's log until ctx ends; nil: XIDs are not known
	KernelLog func(ctx context.Context, each func(host.Record)) error
	Host      Host
	Record    func(escalation.Step) // records each step in the journal
	// whether the GPU had a fault of its own; nil: no faults are known
	Hardware func(uuid string, within time.Duration) bool
	// what is known of a GPU's clocks and links; nil: nothing
	Evidence  func(uuid string) jobs.Evidence
	Backends  []backend.Backend         // beside the hook
	Servers   func() []wire.MPSStats    // of MPS; nil: none
	Gemini    func() []wire.GeminiStats // of Gemini's servers; nil: none
	Refused   func() int                // number of bad tenant files; nil: none
	NCCL      string                    // address at which NCCL's RAS service of jobs listens; empty: it is not asked
	Trusted   []string                  // versions of NCCL that are asked although a question can crash them
	Kernels   bool                      // the kernels of all programs are timed now and then
	Simulated bool                      // the GPUs are simulated: no action on processes
	CgroupFS  string                    // /sys/fs/cgroup
	MemInfo   string                    // path of the kernel's figures of the host's memory; empty: /proc/meminfo
	Driver    suspend.Call              // suspends processes; nil: child processes of this program
	Tell      func(suspend.End)         // records each suspension and resumption in the journal; may be nil
	Crashed   func(crash.Head)          // records each crash in the journal; may be nil
	// told at most twice at the end of Run: when the driver begins to give memory back to
	// programs that would not survive the enforcer's end, and when it is done; may be nil
	Returning func(is bool)
}

// A Host is the driver's and the kernel's view of the GPUs: collectors.Host.
type Host interface {
	DeviceProcesses() []collectors.DeviceProcess
	Silent() map[string]bool // GPUs that do not answer, by UUID
	Process(pid int) (host.Process, error)
	Memory(uuid string) (total, free, reserved uint64, ok bool)
	Rates(uuid string) (link, memory float64, ok bool)
}

// An Enforcer is the broker and the enforcement of its decisions. Its methods
// are safe for concurrent use.
type Enforcer struct {
	Options
	log       *slog.Logger
	broker    *broker.Broker
	lock      *host.Lock
	policy    chan *policy.Policy // for Run to apply
	stats     atomic.Pointer[wire.EnforcerStats]
	terms     *response.Terms
	capacity  capacity
	observers observers
	demands   *backend.Demands

	// Run's goroutine owns the fields below.
	identities policy.Identities
	audit      audit.Audit
	gemini     audit.GeminiAudit
	qos        audit.QoS
	response   *response.Response
	swap       *swap.Swapper
	crowds     string // the tenant that had most of the sessions at the last look; empty: none had
}

// New takes the directory, and listens. Call Run, or Close.
func New(o Options) (*Enforcer, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the enforcer's directory: %w", err)
	}
	held, err := lock(o.Dir)
	if err != nil {
		return nil, err
	}
	e := &Enforcer{Options: o, lock: held, policy: make(chan *policy.Policy, 1),
		log: cmp.Or(o.Broker.Logger, slog.New(slog.DiscardHandler))}
	e.wire()
	o.Broker.Policy, o.Broker.Owner, o.Broker.Enforcer = e.terms, policy.Owner, e.stats.Load
	o.Broker.Capacity, o.Broker.Observe = e.capacity.of, e.observers.observe
	e.swap.Serve(&o.Broker)
	if e.broker, err = broker.New(o.Broker); err != nil {
		held.Release()
		return nil, err
	}
	if err := held.Name(); err != nil {
		e.log.Warn("the enforcer's lock is held but does not name this process, and that is tried again", "err",
			host.Explain(err, host.Writes))
	}
	e.observers.broker, e.swap.Broker = e.broker, e.broker
	e.observers.crashes.Open()
	e.response.Restore()
	e.swap.Remember() // before the first session
	return e, nil
}

// wire gives the parts what they need of each other.
func (e *Enforcer) wire() {
	o := &e.Options
	e.stats.Store(&wire.EnforcerStats{})
	e.audit.Tick, e.gemini.Audit.Tick, e.qos.Tick = o.Tick, o.Tick, o.Tick
	procfs := cmp.Or(o.Broker.ProcFS, "/proc")
	e.identities = policy.Identities{ProcFS: procfs, Simulated: o.Simulated}
	e.terms = response.NewTerms(o.Policy, o.Host.Rates, o.Simulated, func() { e.broker.Refresh() })
	e.capacity = capacity{memory: o.Host.Memory, given: given{}}
	e.capacity.Store(&map[string]uint64{})
	e.observers = observers{Options: o, log: e.log}
	e.observers.open(procfs)
	e.demands = backend.NewDemands(o.Backends, e.log)

	r := response.New(response.Options{Tick: o.Tick, Log: e.log, Terms: e.terms, ProcFS: procfs,
		CgroupFS: cmp.Or(o.CgroupFS, "/sys/fs/cgroup"), StateFile: o.StateFile, Spans: o.Broker.Spans, Process: o.Host.Process,
		Hardware: o.Hardware, Record: o.Record,
		Notice: func(text string, pids ...int) { e.broker.Notice(text, pids...) }})
	call := o.Driver
	if call == nil {
		call = suspend.Helper(filepath.Join(o.Dir, "driver.lock"))
	}
	e.swap = swap.New(swap.Options{Tick: o.Tick, Log: e.log, ProcFS: procfs, Simulated: o.Simulated,
		Mover: suspend.Mover{Call: call, Spans: o.Broker.Spans, Alive: r.Actor.Alive, Settle: o.Tick.Of(settle),
			Guard: &suspend.Guards{},
			Room:  suspend.Host{ProcFS: r.Actor.ProcFS, CgroupFS: r.Actor.CgroupFS, MemInfo: o.MemInfo}.Room},
		Save: r.Save, Returning: o.Returning, Tell: o.Tell,
		Policy: e.terms.Policy, Memory: o.Host.Memory, Process: o.Host.Process,
		Jobs: &e.observers.jobs, Stopped: r.Stopped, Release: r.Release, Reserve: func(b audit.Books) {
			e.measure(b)
			e.broker.Refresh()
		}})
	e.response, r.Swap = r, e.swap
}

// Close gives up an enforcer that will not Run.
func (e *Enforcer) Close() {
	e.broker.Close()
	e.lock.Release()
}

// Stats returns the broker's books, with the enforcer's additions.
func (e *Enforcer) Stats() wire.Stats { return e.broker.Stats() }

// Suspend has an operator suspend a workload: see swap.Swapper.
func (e *Enforcer) Suspend(ctx context.Context, workload, why string) (string, error) {
	return e.swap.Suspend(ctx, workload, why)
}

// ResumeProcess has an operator resume a suspended workload: see swap.Swapper.
func (e *Enforcer) ResumeProcess(ctx context.Context, workload, why string) (string, error) {
	return e.swap.Resume(ctx, workload, why)
}

// Crashes returns the crashes whose records a user may read, the oldest first.
func (e *Enforcer) Crashes(uid uint32) []crash.Head { return e.observers.crashes.Heads(uid) }

// Crash returns the JSON of a crash.Record that a user may read, and whether there is one. It
// reads the disk.
func (e *Enforcer) Crash(uid uint32, id int) ([]byte, bool, error) {
	return e.observers.crashes.Record(uid, id)
}

// Profile observes a program for some time. It is named by its PID, or by its workload if that has one process under
// the hook. A user may observe his own programs, and root all.
func (e *Enforcer) Profile(ctx context.Context, uid uint32, pid int, workload string, d time.Duration, spans bool) (profile.Profile, error) {
	return e.observers.profile(ctx, uid, pid, workload, d, spans)
}

// TenantOf returns the one tenant of a user: see backend.Demands.
func (e *Enforcer) TenantOf(uid int) (string, bool) { return e.demands.TenantOf(uid) }

// Configure judges all sessions and escalated workloads by another policy. It drops
// no session, and does not block: Run may have ended.
func (e *Enforcer) Configure(p *policy.Policy) {
	for {
		select {
		case e.policy <- p:
			return
		default:
		}
		select {
		case <-e.policy: // an older one
		default:
		}
	}
}

// Run enforces until ctx ends. Paused workloads then go on, and the next
// enforcer pauses them again.
func (e *Enforcer) Run(ctx context.Context) error {
	defer e.lock.Release()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.broker.Run(ctx) })
	for _, b := range e.Backends {
		group.Go(func() error { return b.Run(ctx) })
	}
	if e.KernelLog != nil {
		group.Go(func() error { // the health checks tell if it cannot be read
			host.FollowLog(ctx, e.KernelLog, e.observers.crashes.Kernel, func(error, bool) {})
			return nil
		})
	}
	if e.Kernels {
		group.Go(func() error {
			e.observers.kernels.Keep(ctx, e.observers.hooked, e.observers.glance)
			return nil
		})
	}
	e.swap.Suspender.Life = ctx
	group.Go(func() error {
		tick := time.NewTicker(e.Tick.Of(time.Second))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				e.response.Close()
				e.observers.tellCrashes()
				return nil
			case p := <-e.policy:
				e.terms.Configure(p)
			case do := <-e.swap.Orders():
				do()
			case now := <-tick.C:
				e.look(now)
			}
		}
	})
	return group.Wait()
}

// look audits, and acts on the result.
func (e *Enforcer) look(now time.Time) {
	e.broker.Refresh()
	b := e.books(now)
	e.broker.ShowTraces() // of the listed processes, until they were listed
	e.measure(b)
	found := e.audit.Look(b)
	e.qos.Look(b, found.Quotas)
	e.response.Group(b)
	e.crowds = crowding(b.Sessions)
	e.swap.Look(now, b)
	e.terms.Pace(b, found)
	e.response.Look(now, b, found, e.heldBack())
	if !e.Simulated {
		e.demands.Look(b)
	}
	e.observers.tellCrashes()
	e.publish(b, found)
	_ = e.lock.Name() // New said what hinders it
}

// measure measures what tenants can have of the GPUs' memory.
func (e *Enforcer) measure(b audit.Books) {
	e.capacity.measure(b, e.terms.Policy(), e.swap.Absent())
}

// books returns the input of an audit. It asks the driver first, so that a
// process that ends between the two does not count as unhooked.
func (e *Enforcer) books(now time.Time) audit.Books {
	p := e.terms.Policy()
	b := audit.Books{Now: now, DeviceProcesses: e.swap.Correct(e.identities.Expose(now, e.Host.DeviceProcesses())),
		Silent: e.Host.Silent(), Names: p.Tenants(), Quota: p.Quota}
	for _, s := range e.broker.Sessions() {
		one := audit.Session{PID: s.PID, Tenant: s.Tenant, Stale: s.Stale}
		for _, g := range s.GPUs {
			one.GPUs = append(one.GPUs, audit.SessionGPU{UUID: g.UUID, Committed: g.Committed, Slice: g.Slice})
		}
		b.Sessions = append(b.Sessions, one)
	}
	stats := e.broker.Stats()
	b.Tenants, b.GPUs = stats.Tenants, stats.GPUs
	b.Tenant = func(h collectors.DeviceProcess) (string, bool) {
		tenant := e.identities.Tenant(p, now, h)
		return tenant, p.Governed(tenant)
	}
	e.swap.Remember()
	b.Holds, b.Moving = e.heldBack(), e.swap.Moving()
	return b
}

// publish puts the findings into the statistics.
func (e *Enforcer) publish(b audit.Books, found audit.Audited) {
	s := wire.EnforcerStats{Quotas: found.Quotas, Workloads: found.Workloads}
	s.Escalation, s.Actions = e.response.Stats()
	if e.Refused != nil {
		s.Refused = e.Refused()
	}
	if e.Servers != nil {
		s.MPS = e.Servers()
	}
	if e.Gemini != nil {
		s.Gemini = e.Gemini()
		e.gemini.Look(b, s.Gemini)
	}
	s.Jobs, s.Hangs = e.observers.look(b, e.heldBack())
	s.Stragglers, s.Unread = e.observers.jobs.Stragglers(), e.observers.jobs.Unread()
	s.Kernels = e.observers.kernels.Top(b.Now)
	s.Suspended, s.Suspensions, s.Overcommit = e.swap.Stats(b)
	s.Held = e.heldStats()
	for i := range s.Quotas {
		s.Quotas[i].Holders = e.demands.Holders(b, &s.Quotas[i])
	}
	e.stats.Store(&s)
}
