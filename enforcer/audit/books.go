package audit

import (
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// Books are the input of an audit, once a tick: the driver's and the kernel's
// view, and the broker's. Fetch the driver's first: a process that ends in
// between then counts as gone, not as unhooked.
type Books struct {
	Now             time.Time
	DeviceProcesses []collectors.DeviceProcess
	Silent          map[string]bool // GPUs whose driver does not answer, by UUID: their processes are unknown
	Sessions        []Session
	Tenants         []wire.TenantStats
	GPUs            []wire.GPUStats // those that the broker governs
	Names           []string        // of the policy's tenants

	// Tenant returns the tenant of a process without a session, and whether the
	// tenant is governed; the default tenant is not.
	Tenant func(h collectors.DeviceProcess) (tenant string, governed bool)

	// Quota returns a tenant's quota on a GPU. A limit or bandwidth of 0 is
	// none, like 1.
	Quota func(tenant, gpu string) policy.Quota

	// Holds has what the enforcer itself holds back. A process that is Starved does not count as
	// unhooked. One that the broker's limits refused a session (Filled) has as much time as one that
	// lost its session.
	Holds Holds

	// Moving are the GPUs, by UUID, from or to which the memory of a workload is on its way. The
	// driver may then count much more of the GPU's time for others than they have: measured on
	// an H200, 10 to 17 % for a program of 3 %. No window of GPU time spans such a moment.
	Moving map[string]bool

	tick Tick // of the audit
}

// ahead reports whether a time is later than the clock allows.
func (b *Books) ahead(at time.Time) bool { return at.Sub(b.Now) > b.tick.Of(oldDeviceProcess) }

// Hooked returns the tenants of processes with a session, by PID.
func (b *Books) Hooked() map[int]string {
	tenants := map[int]string{}
	for _, s := range b.Sessions {
		tenants[s.PID] = s.Tenant
	}
	return tenants
}

// A Session is a process that the broker knows, even if it fell silent.
type Session struct {
	PID    int
	Start  uint64 // clock ticks from boot to the process's start; 0 where it is not known
	Tenant string
	Stale  bool
	GPUs   []SessionGPU // all on which it is governed
}

// A SessionGPU is the memory of a session on a GPU, by the broker's books.
type SessionGPU struct {
	UUID      string
	Committed uint64 // bytes, reserved ones included
	// the longest time slice that the process gave its contexts itself; 0: none beyond the driver's default
	Slice time.Duration
}

// on returns the booked bytes of a session on a GPU, and whether the session
// said that it uses the GPU.
func (s *Session) on(gpu string) (committed uint64, seated bool) {
	for i := range s.GPUs {
		if s.GPUs[i].UUID == gpu {
			committed += s.GPUs[i].Committed
			seated = true
		}
	}
	return committed, seated
}

// slice returns the longest time slice that the process gave itself on a GPU; 0: none.
func (s *Session) slice(gpu string) (longest time.Duration) {
	for i := range s.GPUs {
		if s.GPUs[i].UUID == gpu {
			longest = max(longest, s.GPUs[i].Slice)
		}
	}
	return longest
}

// sessions adds the sessions to an index by PID. A process that reconnects has
// two for a moment: they count together, and the one that speaks determines the
// tenant.
func (b *Books) sessions(index map[int]Session) {
	several := map[int][]SessionGPU{} // of processes that have more than one
	for _, s := range b.Sessions {
		o, two := index[s.PID]
		if !two {
			index[s.PID] = s
			continue
		}
		gpus, many := several[s.PID]
		if !many {
			gpus = slices.Clone(o.GPUs)
		}
		if o.Stale && !s.Stale {
			o = s
		}
		gpus = append(gpus, s.GPUs...)
		o.GPUs = gpus
		index[s.PID], several[s.PID] = o, o.GPUs
	}
}

// session returns the session of a device process.
func session(index map[int]Session, h *collectors.DeviceProcess) (Session, bool) {
	s, ok := index[h.Process.PID]
	if ok && s.Start != 0 && h.Process.Start != 0 && s.Start != h.Process.Start { // the PID was another's
		return Session{}, false
	}
	return s, ok
}
