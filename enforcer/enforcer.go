// Package enforcer keeps tenants to their quotas, and what they are promised
// to them. The broker (enforcer/broker) gives out GPU time and memory as the
// policy says (enforcer/policy); once a second its books are compared with the
// driver's (enforcer/audit), who violates a quota is escalated
// (enforcer/escalation), and what its levels say is done (enforcer/action). This
// package puts that together, and starts programs under the hook.
package enforcer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/backend"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// How often, and for how long.
const (
	interval = time.Second
	excuse   = time.Minute // after a fault of the hardware nobody on the GPU is judged
)

// Options are what an Enforcer is made with. The functions must not wait, and
// may be called concurrently.
type Options struct {
	Policy    *policy.Policy
	Broker    broker.Options // without what is the enforcer's to say: Policy, Owner, Capacity, Enforcer
	Dir       string         // of one enforcer only, made if it is not there
	StateFile string         // of what outlives a restart: who is paused; empty: nothing does
	Host      Host
	Record    func(escalation.Step)                        // takes each step for the journal
	Hardware  func(uuid string, within time.Duration) bool // whether the GPU had a fault of its own; nil: none is known of
	Backends  []backend.Backend                            // beside the hook
	Servers   func() []wire.MPSStats                       // of MPS; nil: none
	Gemini    func() []wire.GeminiStats                    // of the servers beside it; nil: none
	Refused   func() int                                   // files of tenants that are bad; nil: none
	Simulated bool                                         // the GPUs are: nothing is done to a process
	CgroupFS  string                                       // /sys/fs/cgroup
}

// A Host is what the driver and the kernel say of the GPUs: collectors.Host.
type Host interface {
	DeviceProcesses() []collectors.DeviceProcess
	Silent() map[string]bool // GPUs that do not answer, by UUID
	Process(pid int) (host.Process, error)
	Memory(uuid string) (total, free, reserved uint64, ok bool)
	Rates(uuid string) (link, memory float64, ok bool)
}

// An Enforcer is the broker, and who sees to it that its word counts. Its
// methods are safe for concurrent use.
type Enforcer struct {
	Options
	log      *slog.Logger
	broker   *broker.Broker
	unlock   func()
	terms    atomic.Pointer[terms]
	stats    atomic.Pointer[wire.EnforcerStats]
	capacity atomic.Pointer[map[string]uint64] // bytes that tenants can have of each GPU's memory
	users    atomic.Pointer[map[int]string]    // tenants of users
	policy   chan *policy.Policy               // that Run takes over

	// What follows is Run's.
	audit         audit.Audit
	beside        besideAudit
	qos           audit.QoS
	escalation    escalation.Escalation
	actor         action.Actor
	pacer         pacer
	sampled       map[place]*float64 // the last samples of the memory's bandwidth that the pacer saw
	groups        map[audit.Subject]*processGroup
	held          map[audit.Subject]bool // by the broker
	identities    identityCache
	pausedMembers map[audit.Subject]string // of the process groups that were paused
	braked        time.Time                // episode that was told of

	written []byte // the state, as it was last written
	unsaved bool   // writing it failed, and that was told
	spoiled bool   // what was written before could not be read: it is to be set aside
}

// New takes the directory, and listens. Run must be called, or Close.
func New(o Options) (*Enforcer, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the enforcer's directory: %w", err)
	}
	unlock, err := lock(o.Dir)
	if err != nil {
		return nil, err
	}
	e := &Enforcer{Options: o, unlock: unlock, policy: make(chan *policy.Policy, 1), pacer: pacer{}, sampled: map[place]*float64{}, held: map[audit.Subject]bool{}, pausedMembers: map[audit.Subject]string{},
		log: cmp.Or(o.Broker.Logger, slog.New(slog.DiscardHandler))}
	e.identities = identityCache{procfs: cmp.Or(o.Broker.ProcFS, "/proc"), simulated: o.Simulated}
	e.actor = action.Actor{ProcFS: e.identities.procfs, CgroupFS: cmp.Or(o.CgroupFS, "/sys/fs/cgroup"), Keep: e.keep}
	e.terms.Store(&terms{Policy: o.Policy, rates: o.Host.Rates})
	e.stats.Store(&wire.EnforcerStats{})
	e.capacity.Store(&map[string]uint64{})
	o.Broker.Policy, o.Broker.Owner, o.Broker.Enforcer = e, policy.Owner, e.stats.Load
	o.Broker.Capacity = e.capacityOf
	if e.broker, err = broker.New(o.Broker); err != nil {
		unlock()
		return nil, err
	}
	e.restore()
	return e, nil
}

// Close gives up an enforcer that is not going to Run.
func (e *Enforcer) Close() {
	e.broker.Close()
	e.unlock()
}

// Stats returns the broker's books, and what the enforcer adds to them.
func (e *Enforcer) Stats() wire.Stats { return e.broker.Stats() }

// Configure has all sessions judged by another policy, and who stands on the
// escalation too. None is dropped.
func (e *Enforcer) Configure(p *policy.Policy) {
	select {
	case <-e.policy:
	default:
	}
	e.policy <- p
}

// Run enforces until ctx ends. Who is paused then goes on, and is paused again
// by the next enforcer.
func (e *Enforcer) Run(ctx context.Context) error {
	defer e.unlock()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.broker.Run(ctx) })
	for _, b := range e.Backends {
		group.Go(func() error { return b.Run(ctx) })
	}
	group.Go(func() error {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				e.rest()
				return nil
			case p := <-e.policy:
				e.change(func(t *terms) { t.Policy = p })
			case now := <-tick.C:
				e.look(now)
			}
		}
	})
	return group.Wait()
}

// look audits, and does what follows from it.
func (e *Enforcer) look(now time.Time) {
	e.broker.Refresh()
	b := e.books(now)
	e.measureCapacity(b)
	found := e.audit.Look(b)
	e.qos.Look(b, found.Quotas)
	e.groupProcesses(b)
	e.pace(b, found)
	e.judge(now, b, found)
	e.demand(b)
	e.publish(b, found)
}

// books returns what an audit looks at. The driver is heard first, so that who
// ends between the two is not taken for one without a session.
func (e *Enforcer) books(now time.Time) audit.Books {
	t := e.terms.Load()
	b := audit.Books{Now: now, DeviceProcesses: e.identities.expose(now, e.Host.DeviceProcesses()), Silent: e.Host.Silent(), Names: t.Tenants(), Quota: t.Quota}
	for _, s := range e.broker.Sessions() {
		one := audit.Session{PID: s.PID, Tenant: s.Tenant, Stale: s.Stale}
		for _, g := range s.GPUs {
			one.GPUs = append(one.GPUs, audit.SessionGPU{UUID: g.UUID, Committed: g.Committed})
		}
		b.Sessions = append(b.Sessions, one)
	}
	stats := e.broker.Stats()
	b.Tenants, b.GPUs = stats.Tenants, stats.GPUs
	b.Tenant = func(h collectors.DeviceProcess) (string, bool) {
		tenant := e.identities.tenant(t.Policy, now, h)
		return tenant, t.Governed(tenant)
	}
	b.Refused = e.broker.Refused
	b.Punished = func(tenant string) bool { return t.punished(tenant) }
	return b
}

// measureCapacity finds how much of each GPU's memory tenants can have: what
// they have, and what is free, but no more than there is.
func (e *Enforcer) measureCapacity(b audit.Books) {
	capacity := map[string]uint64{}
	for _, t := range b.Tenants {
		capacity[t.GPU] += t.MemoryUsed + t.MemoryReserved
	}
	for uuid, used := range capacity {
		if total, free, kept, ok := e.Host.Memory(uuid); ok {
			capacity[uuid] = min(used+free, total-min(kept, total))
		} else {
			delete(capacity, uuid)
		}
	}
	e.capacity.Store(&capacity)
}

// capacityOf returns how much of a GPU's memory tenants can have: of one whose
// books were not looked at yet, all but the driver's own.
func (e *Enforcer) capacityOf(uuid string) uint64 {
	if capacity, known := (*e.capacity.Load())[uuid]; known {
		return capacity
	}
	total, _, kept, _ := e.Host.Memory(uuid)
	return total - min(kept, total)
}

// pace lowers the limits of those whose kernels take more of the memory's
// bandwidth than they may.
func (e *Enforcer) pace(b audit.Books, found audit.Audited) {
	shares := map[place]float64{}
	for _, t := range b.Tenants {
		shares[place{t.Tenant, t.GPU}] = t.Share10s.Actual
	}
	t := e.terms.Load()
	gone := func(at place) bool { return !t.Governed(at.tenant) }
	maps.DeleteFunc(e.sampled, func(at place, _ *float64) bool { return gone(at) })
	maps.DeleteFunc(e.pacer, func(at place, _ float64) bool { return gone(at) })
	for _, q := range found.Quotas {
		at := place{q.Tenant, q.GPU}
		if q.Bus != nil && q.Bus != e.sampled[at] { // each sample counts once: the audit shows it until there is another
			e.sampled[at] = q.Bus
			e.pacer.look(at, b.Quota(q.Tenant, q.GPU), *q.Bus, shares[at])
		}
	}
	e.change(func(t *terms) { t.paced = e.pacer.clone() })
}

// demand tells the backends what to hold.
func (e *Enforcer) demand(b audit.Books) {
	if len(e.Backends) == 0 || e.Simulated {
		return
	}
	demands := e.demands(b)
	for _, backend := range e.Backends {
		backend.Want(demands)
	}
}
