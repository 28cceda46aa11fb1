// Package backend enforces quotas by other means than the hook: CUDA MPS, and
// the driver's memory limits for cgroups.
package backend

import (
	"context"
	"log/slog"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// Resources that a backend can hold, as named in wire.Holder.
const (
	Compute = "compute" // of the GPU's time, or of its multiprocessors
	Memory  = "memory"
)

// A Backend holds quotas in addition to the hook: for processes that the hook
// cannot see, or where the driver is stricter.
type Backend interface {
	// Name is the backend's name in wire.Holder.
	Name() string
	// Want sets what is to hold from now on, with one demand for each tenant of
	// the policy and GPU. It returns at once. The driver is only asked after a
	// Want, so the backend rests if the calls stop. One goroutine calls it, at
	// any rate. The caller must not change the demands afterwards.
	Want([]Demand)
	// Holds returns what actually held a moment ago; anything uncertain is left
	// out. Safe for concurrent use.
	Holds() []Hold
	// Run does all the waiting. It returns nil when ctx ends; the settings
	// stay.
	Run(ctx context.Context) error
}

// A Demand is a tenant's quota on a GPU, and the processes that draw on it. The
// default tenant has one too: nothing is held for it, but its processes show
// what does not belong to another tenant alone.
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

// post leaves demands for a goroutine that may be slower than the caller: it
// sees the newest.
func post(to chan []Demand, demands []Demand) {
	select {
	case <-to:
	default:
	}
	to <- demands
}

// A report is what a backend last saw in force.
type report struct {
	at      time.Time
	holds   []Hold
	servers []wire.MPSStats
}

// reportLasts is the life of a report: without further Wants it goes stale.
const reportLasts = 15 * time.Second

// fresh returns s, or nothing if s is stale.
func (s *report) fresh() report {
	if s == nil || time.Since(s.at) > reportLasts {
		return report{}
	}
	return *s
}

// remarks are the reasons that a backend holds nothing, by their subject. Each
// is logged once, and again when it changes.
type remarks map[string]string

// tell logs the new ones of now, and remembers now.
func (r *remarks) tell(log *slog.Logger, backend string, now remarks) {
	for about, why := range now {
		if (*r)[about] != why {
			log.Warn("a backend does not hold a quota", "backend", backend, "of", about, "why", why)
		}
	}
	*r = now
}
