package host

import (
	"context"
	"sync/atomic"
	"time"
)

// allocationsEach is the interval between requests to schedulers.
const allocationsEach = 30 * time.Second

// Allocations holds the allocations of a host's schedulers, as last reported.
type Allocations struct {
	table           *Table
	kubelet, cgroup string
	now             atomic.Pointer[[]Allocation]
}

// NewAllocations returns the allocations that the kubelet reports at a Unix
// socket, and those of Slurm, from t's records and the cgroups below cgroup.
// Either path may be empty. Failures are counted in t.
func NewAllocations(t *Table, kubelet, cgroup string) *Allocations {
	return &Allocations{table: t, kubelet: kubelet, cgroup: cgroup}
}

// Now returns the allocations as last reported. Safe for concurrent use.
func (a *Allocations) Now() []Allocation {
	if all := a.now.Load(); all != nil {
		return *all
	}
	return nil
}

// Run asks the schedulers at intervals, until ctx ends. It then returns without
// waiting for a source, because one may hang.
func (a *Allocations) Run(ctx context.Context) error {
	for {
		asked := make(chan struct{})
		go func() { defer close(asked); a.ask(ctx) }()
		select {
		case <-ctx.Done():
			return nil
		case <-asked:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(allocationsEach):
		}
	}
}

func (a *Allocations) ask(ctx context.Context) {
	var all []Allocation
	if a.kubelet != "" {
		given, err := KubeletAllocations(ctx, a.kubelet)
		if err != nil {
			a.table.failures.add("kubelet", err)
		}
		all = append(all, given...)
	}
	if a.cgroup != "" {
		given, err := SlurmAllocations(a.table.Jobs, a.cgroup, a.table.Proc)
		if err != nil {
			a.table.failures.add("slurm", err)
		}
		all = append(all, given...)
	}
	a.now.Store(&all)
}

// Source names the scheduler.
func (a Allocation) Source() string {
	if a.Job != "" {
		return "slurm"
	}
	return "kubelet"
}

// Key returns the key of the workload that received the GPUs; for a Slurm job
// it covers all of the job's steps.
func (a Allocation) Key() string {
	if a.Job != "" {
		return key(KindSlurm, a.Job)
	}
	return key(KindPod, a.Namespace, a.Pod, a.Container)
}

// For reports whether w is the receiver of the GPUs, or a part of it.
func (a Allocation) For(w Workload) bool {
	if a.Job != "" {
		return w.Job == a.Job
	}
	return w.Kind == KindPod && w.Namespace == a.Namespace && w.Pod == a.Pod && w.Container == a.Container
}
