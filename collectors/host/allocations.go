package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"
)

// allocationsEach is the interval between requests to schedulers.
const allocationsEach = 30 * time.Second

// kubeletSource names the kubelet as a source of allocations and of failures.
const kubeletSource = "kubelet"

// Allocations holds the allocations of a host's schedulers, as last reported.
type Allocations struct {
	table           *Table
	kubelet, cgroup string
	now             atomic.Pointer[answers]
}

// Allocated are the allocations known at one time.
type Allocated struct {
	All []Allocation
	// Known has the schedulers that report completely or not at all. If a
	// scheduler is unknown, GPUs without an allocation may be allocated.
	Known map[string]bool
}

// answers are the schedulers' last answers.
type answers struct {
	slurm, pods []Allocation
	kubelet     bool      // there is one on this host
	until       time.Time // pods is complete until then
}

// NewAllocations returns the allocations of pods, from a file of
// gpusteward-kube, and those of Slurm, from t's records and the cgroups below
// cgroup. Either path may be empty. Failures are counted in t.
func NewAllocations(t *Table, kubelet, cgroup string) *Allocations {
	return &Allocations{table: t, kubelet: kubelet, cgroup: cgroup}
}

// Now returns the allocations as last reported, without stale ones. Safe for
// concurrent use.
func (a *Allocations) Now() Allocated {
	last := a.now.Load()
	switch {
	case last == nil:
		return Allocated{}
	case !last.kubelet:
		return Allocated{All: last.slurm}
	case time.Now().Before(last.until):
		return Allocated{All: slices.Concat(last.pods, last.slurm), Known: map[string]bool{kubeletSource: true}}
	}
	return Allocated{All: last.slurm, Known: map[string]bool{kubeletSource: false}}
}

// Run asks the schedulers at intervals, until ctx ends. It then returns without
// waiting for a source, because one may hang.
func (a *Allocations) Run(ctx context.Context) error {
	for {
		asked := make(chan struct{})
		go func() { defer close(asked); a.ask() }()
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

func (a *Allocations) ask() {
	var all answers
	if a.kubelet != "" {
		var err error
		all.pods, all.until, err = podAllocations(a.kubelet, time.Now())
		_, none := os.Stat(filepath.Dir(a.kubelet)) // the directory shows that a file should be there
		all.kubelet = none == nil || !errors.Is(err, fs.ErrNotExist)
		if all.kubelet && err != nil {
			a.table.failures.add(kubeletSource, err)
		}
	}
	if a.cgroup != "" {
		var err error
		all.slurm, err = slurmAllocations(a.table.Jobs, a.cgroup, a.table.Proc)
		if err != nil {
			a.table.failures.add("slurm", err)
		}
	}
	a.now.Store(&all)
}

// Source names the scheduler.
func (a Allocation) Source() string {
	if a.Job != "" {
		return "slurm"
	}
	return kubeletSource
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
		return w.Job == a.Job || w.SLUID == a.Job
	}
	return w.Kind == KindPod && w.Namespace == a.Namespace && w.Pod == a.Pod && w.Container == a.Container
}
