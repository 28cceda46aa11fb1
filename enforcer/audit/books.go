package audit

import (
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// Books are what an audit looks at, once a second: what the driver and the
// kernel say, and what the broker says. The driver's word is to be fetched
// first: who ends between the two is then taken for gone, not for unhooked.
type Books struct {
	Now             time.Time
	DeviceProcesses []collectors.DeviceProcess
	Silent          map[string]bool // GPUs whose driver does not answer, by UUID: nothing is known of who is there
	Sessions        []Session
	Tenants         []wire.TenantStats
	GPUs            []wire.GPUStats // those that the broker governs
	Names           []string        // of the policy's tenants

	// Tenant returns whose a process is, and whether it is governed: nobody
	// whose tenant is default is. It is asked of processes without a session.
	Tenant func(h collectors.DeviceProcess) (tenant string, governed bool)

	// Quota returns what a tenant may use of a GPU. A limit or a bandwidth of 0
	// is none, as 1 is.
	Quota func(tenant, gpu string) policy.Quota

	// Refused reports whether a process may be without a session because of the
	// broker: its limits refused it in the last minute, or it has not what a
	// session takes. Such a process is not found to go around the hook. Nil:
	// none is.
	Refused func(pid int) bool

	// Punished reports whether the escalation holds a tenant, or part of it: what
	// it does not get then is not the others' fault. Nil: nobody is.
	Punished func(tenant string) bool
}

// A Session is a process that the broker knows. One that fell silent is one
// still.
type Session struct {
	PID    int
	Start  uint64 // clock ticks from boot to the process's start; 0 where it is not known
	Tenant string
	Stale  bool
	GPUs   []SessionGPU // all that it is governed on
}

// A SessionGPU is what a session has of a GPU's memory by the broker's books.
type SessionGPU struct {
	UUID      string
	Committed uint64 // bytes, reserved ones included
}

// on returns the bytes that the books have for a session on a GPU, and whether
// it said that it uses that one.
func (s *Session) on(gpu string) (committed uint64, seated bool) {
	for i := range s.GPUs {
		if s.GPUs[i].UUID == gpu {
			committed += s.GPUs[i].Committed
			seated = true
		}
	}
	return committed, seated
}

// sessions adds the sessions to an index by PID. A process that connects anew
// has two for a moment: they count together, and the one that speaks says whose
// it is.
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
		o.GPUs = append(gpus, s.GPUs...)
		index[s.PID], several[s.PID] = o, o.GPUs
	}
}

// refused reports whether a process may be without a session because of the
// broker.
func (b *Books) refused(pid int) bool { return b.Refused != nil && b.Refused(pid) }

// session returns the session of a device process.
func session(index map[int]Session, h *collectors.DeviceProcess) (Session, bool) {
	s, ok := index[h.Process.PID]
	if ok && s.Start != 0 && h.Process.Start != 0 && s.Start != h.Process.Start { // the PID was another's
		return Session{}, false
	}
	return s, ok
}
