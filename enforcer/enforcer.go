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
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/backend"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/profile"
	"gpusteward/enforcer/suspend"
	"gpusteward/enforcer/swap"
	"gpusteward/internal/wire"
)

// Periods at a tick of a second.
const (
	excuse = time.Minute     // after a hardware fault, workloads on the GPU are not judged
	settle = 5 * time.Second // see suspend.Mover.Settle
)

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
	log        *slog.Logger
	broker     *broker.Broker
	lock       *host.Lock
	terms      inForce
	stats      atomic.Pointer[wire.EnforcerStats]
	jobs       jobs.Observer
	crashes    crash.Recorder
	profiles   profile.Recorder
	kernels    profile.Totals
	capacity   capacity
	neighbours neighbours
	users      atomic.Pointer[map[int]string] // tenants of users
	policy     chan *policy.Policy            // for Run to apply

	// Run's goroutine owns the fields below.
	audit         audit.Audit
	beside        besideAudit
	qos           audit.QoS
	escalation    escalation.Escalation
	actor         action.Actor
	swap          *swap.Swapper
	crowds        string // the tenant that had most of the sessions at the last look; empty: none had
	groups        map[audit.Subject]*processGroup
	unheld        map[place]bool // tenants whose cap is not in force, as the log has it
	identities    identityCache
	pausedMembers map[audit.Subject]string // members of the process groups that were paused
	braked        time.Time                // episode that was logged

	file    host.StateFile
	unsaved bool // the last write failed, and that was logged
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
	e := &Enforcer{Options: o, lock: held, file: host.StateFile{Path: o.StateFile}, policy: make(chan *policy.Policy, 1),
		capacity:      capacity{memory: o.Host.Memory, given: given{}},
		unheld:        map[place]bool{},
		pausedMembers: map[audit.Subject]string{},
		log:           cmp.Or(o.Broker.Logger, slog.New(slog.DiscardHandler))}
	e.identities = identityCache{procfs: cmp.Or(o.Broker.ProcFS, "/proc"), simulated: o.Simulated}
	e.actor = action.Actor{ProcFS: e.identities.procfs, CgroupFS: cmp.Or(o.CgroupFS, "/sys/fs/cgroup"), Keep: e.keep}
	if o.Driver == nil {
		o.Driver = suspend.Helper(filepath.Join(o.Dir, "driver.lock"))
	}
	e.swap = swap.New(swap.Options{Tick: o.Tick, Log: e.log, ProcFS: e.identities.procfs, Simulated: o.Simulated,
		Mover: suspend.Mover{Call: o.Driver, Spans: o.Broker.Spans, Alive: e.actor.Alive, Settle: o.Tick.Of(settle),
			Guard: &suspend.Guards{},
			Room:  suspend.Host{ProcFS: e.actor.ProcFS, CgroupFS: e.actor.CgroupFS, MemInfo: o.MemInfo}.Room},
		Save: e.keepSuspended, Returning: o.Returning, Tell: o.Tell,
		Policy: func() *policy.Policy { return e.terms.Load().Policy }, Memory: o.Host.Memory, Process: o.Host.Process,
		Jobs: &e.jobs, Stopped: e.stopped, Release: e.release, Reserve: func(b audit.Books) {
			e.capacity.measure(b, e.terms.Load().Policy, e.swap.Absent())
			e.broker.Refresh()
		}})
	e.swap.Serve(&o.Broker)
	e.audit.Tick, e.beside.audit.Tick, e.qos.Tick, e.escalation.Tick = o.Tick, o.Tick, o.Tick, o.Tick
	e.terms.held, e.terms.pacer, e.terms.sampled = map[audit.Subject]bool{}, pacer{}, map[place]*float64{}
	e.terms.refresh = func() { e.broker.Refresh() }
	e.terms.Store(&terms{Policy: o.Policy, rates: o.Host.Rates, simulated: o.Simulated})
	e.stats.Store(&wire.EnforcerStats{})
	e.capacity.Store(&map[string]uint64{})
	o.Broker.Policy, o.Broker.Owner, o.Broker.Enforcer = &e.terms, policy.Owner, e.stats.Load
	o.Broker.Capacity = e.capacity.of
	e.crashes.Dir, e.crashes.Log = o.CrashDir, e.log
	o.Broker.Observe = func(t broker.Traced) {
		e.jobs.Observe(t)
		e.crashes.Observe(t)
		e.profiles.Observe(t)
	}
	e.profiles.Time = func(pid int, every time.Duration) { e.broker.Time(pid, every) }
	e.profiles.Look = func() { e.broker.ShowTraces() }
	e.jobs.Procfs, e.jobs.Evidence = e.identities.procfs, e.evidence
	if !o.Simulated {
		e.jobs.RAS, e.jobs.Trusted, e.jobs.Log = o.NCCL, o.Trusted, e.log
	}
	if e.broker, err = broker.New(o.Broker); err != nil {
		held.Release()
		return nil, err
	}
	if err := held.Name(); err != nil {
		e.log.Warn("the enforcer's lock is held but does not name this process, and that is tried again", "err",
			host.Explain(err, host.Writes))
	}
	e.crashes.Open()
	e.swap.Broker = e.broker
	e.restore()
	e.swap.Remember() // before the first session
	return e, nil
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
			host.FollowLog(ctx, e.KernelLog, e.crashes.Kernel, func(error, bool) {})
			return nil
		})
	}
	if e.Kernels {
		group.Go(func() error {
			e.kernels.Keep(ctx, e.hooked, e.glance)
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
				e.rest()
				return nil
			case p := <-e.policy:
				e.terms.change(func(t *terms) { t.Policy = p })
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
	e.capacity.measure(b, e.terms.Load().Policy, e.swap.Absent())
	found := e.audit.Look(b)
	e.qos.Look(b, found.Quotas)
	e.groupProcesses(b)
	e.crowds = crowding(b.Sessions)
	e.swap.Look(now, b)
	e.terms.pace(b, found)
	e.judge(now, b, found)
	e.demand(b)
	e.tellCrashes()
	e.publish(b, found)
	_ = e.lock.Name() // New said what hinders it
}

// books returns the input of an audit. It asks the driver first, so that a
// process that ends between the two does not count as unhooked.
func (e *Enforcer) books(now time.Time) audit.Books {
	t := e.terms.Load()
	b := audit.Books{Now: now, DeviceProcesses: e.swap.Correct(e.identities.expose(now, e.Host.DeviceProcesses())),
		Silent: e.Host.Silent(), Names: t.Tenants(), Quota: t.Quota}
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
		tenant := e.identities.tenant(t.Policy, now, h)
		return tenant, t.Governed(tenant)
	}
	e.swap.Remember()
	b.Holds, b.Moving = e.heldBack(), e.swap.Moving()
	return b
}

// demand sends the backends their demands.
func (e *Enforcer) demand(b audit.Books) {
	if len(e.Backends) == 0 || e.Simulated {
		return
	}
	demands := e.demands(b)
	for _, backend := range e.Backends {
		backend.Want(demands)
	}
}
