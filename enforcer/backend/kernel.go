package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
)

const (
	limitWait   = 2 * time.Second  // a call that takes longer hangs: what it set is unknown
	limitRetry  = 30 * time.Second // after a failure
	limitAgain  = time.Minute      // it is looked whether a limit still holds
	limitAbsent = 10 * time.Minute // for a driver without limits: it may be a newer one by then
)

// KernelMemoryOptions are what NewKernelMemory needs.
type KernelMemoryOptions struct {
	// Limit is gpu.Limits.Limit. It may never return.
	Limit   func(gpu, cgroup string, soft, hard uint64) error
	Proc    host.Proc
	Cgroups string // where cgroups v2 are mounted: /sys/fs/cgroup
	Log     *slog.Logger
}

// KernelMemory is the Backend of the driver's and kernel's memory limits: a
// tenant's cap is the hard limit of its cgroup on the GPU, its reserved memory
// the soft one. They count all allocations, hooked or not.
//
// A limit belongs to a cgroup. A tenant therefore has one only if a single
// cgroup holds all its processes and no others. The limit stays while the
// cgroup exists, without the reserve while no process uses that. A limit from
// before this process began is known again once a tenant wants it; until then
// it stays.
type KernelMemory struct {
	o      KernelMemoryOptions
	wants  chan []Demand
	done   chan limited
	report atomic.Pointer[report]

	// Run's goroutine owns the fields below.
	homes  map[string]string    // cgroups by tenant
	limits map[limitOf]*limit   // that were asked for
	busy   map[string]time.Time // GPUs that are asked, since when: one call for each
	absent time.Time            // until when the driver has no limits
	told   remarks
}

// limitOf identifies a limit.
type limitOf struct {
	gpu    string
	cgroup string // full path
}

// A limit is a request and its outcome.
type limit struct {
	soft, hard uint64
	err        error
	at         time.Time // when it was answered; zero before
}

// limited is the answer to one call.
type limited struct {
	of    limitOf
	limit limit
}

var errLimitNotAsked = errors.New("the driver has not been asked yet")

// NewKernelMemory returns the backend, which works while Run runs.
func NewKernelMemory(o KernelMemoryOptions) *KernelMemory {
	return &KernelMemory{o: o, wants: make(chan []Demand, 1), done: make(chan limited),
		homes: map[string]string{}, limits: map[limitOf]*limit{}, busy: map[string]time.Time{}}
}

// Name implements Backend.
func (k *KernelMemory) Name() string { return "kernel" }

// Want implements Backend.
func (k *KernelMemory) Want(demands []Demand) { post(k.wants, demands) }

// Holds implements Backend.
func (k *KernelMemory) Holds() []Hold { return k.report.Load().fresh().holds }

// Run implements Backend. A call that hangs keeps one thread for its GPU.
func (k *KernelMemory) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case demands := <-k.wants:
			k.pass(ctx, time.Now(), demands)
		case d := <-k.done:
			delete(k.busy, d.of.gpu)
			k.answer(d)
		}
	}
}

// answer records the driver's answer.
func (k *KernelMemory) answer(d limited) {
	if errors.Is(d.limit.err, gpu.ErrNoMemoryLimits) {
		k.absent = d.limit.at.Add(limitAbsent)
		clear(k.limits)
		return
	}
	if l := k.limits[d.of]; l != nil {
		*l = d.limit
	}
}

// pass orders what the demands lack, and reports what holds.
func (k *KernelMemory) pass(ctx context.Context, now time.Time, demands []Demand) {
	why := remarks{}
	wanted := k.wanted(demands, why)
	if now.Before(k.absent) {
		why = remarks{"all tenants": gpu.ErrNoMemoryLimits.Error()}
	} else {
		k.settle(ctx, now, wanted)
	}
	saw := &report{at: now}
	for _, d := range demands {
		of := limitOf{d.GPU, k.home(d.Tenant)}
		w, ok := wanted[of]
		if !ok || d.Tenant == policy.DefaultTenant {
			continue
		}
		if err := k.holds(now, of, w); err == nil && d.Memory > 0 {
			saw.holds = append(saw.holds, Hold{d.Tenant, d.GPU, Memory})
		} else if err != nil && !errors.Is(err, errLimitNotAsked) && !now.Before(k.absent) {
			why["tenant "+d.Tenant+" on "+d.GPU] = err.Error()
		}
	}
	k.told.tell(k.o.Log, k.Name(), why)
	k.report.Store(saw)
}

// holds reports why a limit does not hold.
func (k *KernelMemory) holds(now time.Time, of limitOf, w limit) error {
	if since, asked := k.busy[of.gpu]; asked && now.Sub(since) > limitWait {
		return fmt.Errorf("the driver has not answered for more than %v", limitWait)
	}
	l := k.limits[of]
	if l == nil || l.at.IsZero() || l.soft != w.soft || l.hard != w.hard {
		return errLimitNotAsked
	}
	return l.err
}

// home returns the full path of a tenant's cgroup, if it has one.
func (k *KernelMemory) home(tenant string) string {
	if k.homes[tenant] == "" {
		return ""
	}
	return filepath.Join(k.o.Cgroups, k.homes[tenant])
}

// wanted returns the limits that follow from demands.
func (k *KernelMemory) wanted(demands []Demand, why remarks) map[limitOf]limit {
	present := k.settleHomes(demands, why)
	wanted := map[limitOf]limit{}
	for _, d := range demands {
		home := k.home(d.Tenant)
		if d.Tenant == policy.DefaultTenant || home == "" || d.Memory == 0 && d.Reserved == 0 {
			continue
		}
		w := limit{hard: d.Memory}
		if w.hard == 0 {
			w.hard = gpu.NoLimit
		}
		if present[d.Tenant] {
			w.soft = min(d.Reserved, w.hard)
		}
		wanted[limitOf{d.GPU, home}] = w
	}
	return wanted
}

// settle orders what differs from wanted, for each GPU without a pending call.
func (k *KernelMemory) settle(ctx context.Context, now time.Time, wanted map[limitOf]limit) {
	for of := range k.limits {
		if _, ok := wanted[of]; ok {
			continue
		}
		if _, err := os.Stat(of.cgroup); err != nil || k.limits[of].away() {
			delete(k.limits, of) // gone with its cgroup, or taken away
		} else {
			wanted[of] = limit{hard: gpu.NoLimit}
		}
	}
	for of, w := range wanted {
		l := k.limits[of]
		if _, asked := k.busy[of.gpu]; asked || l != nil && l.soft == w.soft && l.hard == w.hard && !l.due(now) {
			continue
		}
		k.limits[of] = &limit{soft: w.soft, hard: w.hard}
		k.busy[of.gpu] = now
		go func() {
			w.err = k.o.Limit(of.gpu, of.cgroup, w.soft, w.hard)
			w.at = time.Now()
			select {
			case k.done <- limited{of, w}:
			case <-ctx.Done():
			}
		}()
	}
}

// due reports whether it is time to order a limit again.
func (l *limit) due(now time.Time) bool {
	if l.err != nil {
		return now.Sub(l.at) >= limitRetry
	}
	return now.Sub(l.at) >= limitAgain
}

// away reports whether a limit was removed.
func (l *limit) away() bool {
	return l.hard == gpu.NoLimit && l.soft == 0 && l.err == nil && !l.at.IsZero()
}
