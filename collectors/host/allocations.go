package host

import (
	"context"
	"sync/atomic"
	"time"
)

// allocationsEach is how often schedulers are asked what they gave.
const allocationsEach = 30 * time.Second

// Allocations are what the schedulers of a host gave, as they last said.
type Allocations struct {
	table           *Table
	kubelet, cgroup string
	now             atomic.Pointer[[]Allocation]
}

// NewAllocations returns those that the kubelet tells of at a Unix socket, and
// Slurm by t's records and the cgroups below cgroup; either may be empty.
// Failures are t's.
func NewAllocations(t *Table, kubelet, cgroup string) *Allocations {
	return &Allocations{table: t, kubelet: kubelet, cgroup: cgroup}
}

// Now returns what was given when it was last asked for. Safe for concurrent
// use.
func (a *Allocations) Now() []Allocation {
	if all := a.now.Load(); all != nil {
		return *all
	}
	return nil
}

// Run asks from time to time, until ctx ends. It waits for no source then: one
// may hang.
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

// Source names who gave.
func (a Allocation) Source() string {
	if a.Job != "" {
		return "slurm"
	}
	return "kubelet"
}

// Key returns the workload that was given to, as a Workload's; of a Slurm job
// it is all of the job's steps.
func (a Allocation) Key() string {
	if a.Job != "" {
		return key(KindSlurm, a.Job)
	}
	return key(KindPod, a.Namespace, a.Pod, a.Container)
}

// For reports whether w is what was given to, or a part of it.
func (a Allocation) For(w Workload) bool {
	if a.Job != "" {
		return w.Job == a.Job
	}
	return w.Kind == KindPod && w.Namespace == a.Namespace && w.Pod == a.Pod && w.Container == a.Container
}
