// Package backend holds quotas by other means than the hook: CUDA MPS, and the
// memory limits of the driver for cgroups.
package backend

import (
	"context"
	"log/slog"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// Resources that a backend can hold, as wire.Holder has them.
const (
	Compute = "compute" // of the GPU's time, or of its multiprocessors
	Memory  = "memory"
)

// A Backend holds quotas beside the hook: for processes that the hook cannot
// see, or where the driver is the stricter.
type Backend interface {
	// Name is what wire.Holder calls it.
	Name() string
	// Want says what is to hold from now on, with one demand for each tenant of
	// the policy and GPU. It returns at once, and the driver is only asked after
	// a Want: who stops calling leaves the driver alone. One goroutine calls it,
	// as often as it likes, with demands that nobody changes.
	Want([]Demand)
	// Holds returns what really holds, as of a moment ago. What is not known to
	// hold is not in it. Safe for concurrent use.
	Holds() []Hold
	// Run is where all the waiting is. It returns nil when ctx ends; what was
	// set stays as it is.
	Run(ctx context.Context) error
}

// A Demand is a tenant's quota on a GPU, and who draws on it. The tenant
// called default has one too: nothing is held for it, but its processes tell
// what is not any other tenant's alone.
type Demand struct {
	Tenant string
	GPU    string // UUID
	policy.Quota
	Processes []host.Process // that it has on the GPU
	Hooked    bool           // some of them have a session
}

// A Hold is a part of a tenant's quota on a GPU that a backend holds: its
// limit, or its cap of memory.
type Hold struct {
	Tenant, GPU, Resource string
}

// post leaves demands for a goroutine that may be slower than the one that
// posts: it sees the newest.
func post(to chan []Demand, demands []Demand) {
	select {
	case <-to:
	default:
	}
	to <- demands
}

// A report is what a backend last saw itself hold.
type report struct {
	at      time.Time
	holds   []Hold
	servers []wire.MPSStats
}

// reportLasts is how long a report is believed: that of who is asked nothing any
// more goes stale.
const reportLasts = 15 * time.Second

// fresh returns s, or nothing where that is too old.
func (s *report) fresh() report {
	if s == nil || time.Since(s.at) > reportLasts {
		return report{}
	}
	return *s
}

// remarks are why a backend holds nothing, by whom that is about. They are
// told once, and again when they change.
type remarks map[string]string

// tell logs what of now is new, and remembers now.
func (r *remarks) tell(log *slog.Logger, backend string, now remarks) {
	for about, why := range now {
		if (*r)[about] != why {
			log.Warn("a backend does not hold a quota", "backend", backend, "of", about, "why", why)
		}
	}
	*r = now
}
