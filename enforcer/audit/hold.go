package audit

import (
	"iter"
	"math/bits"
)

// A Hold is the set of reasons for which the enforcer itself holds a process or a workload back. What a
// reason explains is never counted against a workload: the audit, the escalation, the jobs and the checks
// of health ask here.
type Hold uint16

// The causes.
const (
	Starved   Hold = 1 << iota // the broker lacks what a session takes, or others have too many sessions
	Filled                     // its own user's sessions left it none
	Suspended                  // its GPU memory is on the host, or on its way there
	Returning                  // its GPU memory is on its way back
	Paused                     // its tenant has no turns, or it is frozen or stopped
	Throttled                  // its tenant has a part of its weight and limit
	Paced                      // its tenant's limit is below its guarantee, for the bandwidth of its kernels
	Waiting                    // it waits for memory of an overcommitted GPU
)

// causeNames are in the order of the causes.
var causeNames = []string{"starved", "filled", "suspended", "returning", "paused", "throttled", "paced", "waiting"}

// String returns the name of a cause.
func (h Hold) String() string { return causeNames[bits.TrailingZeros16(uint16(h))] }

// Causes yields the causes one by one.
func (h Hold) Causes() iter.Seq[Hold] {
	return func(yield func(Hold) bool) {
		for i := range causeNames {
			if cause := Hold(1) << i; h.Has(cause) && !yield(cause) {
				return
			}
		}
	}
}

// What causes explain. Filled explains nothing: a user who takes all of his own sessions is judged.
const (
	NoSession = Starved | Suspended | Returning          // its hook cannot reconnect
	Shortfall = Paused | Throttled | Paced               // it gets less than its guarantee
	Standing  = Suspended | Returning | Paused | Waiting // it stands still
)

// Has reports whether the hold has one of the causes.
func (h Hold) Has(causes Hold) bool { return h&causes != 0 }

// Holds has the processes, workloads and tenants that the enforcer holds back at the time of an audit. The
// zero value has none.
type Holds struct {
	Process   func(pid int, tenant string) Hold // nil: none
	Workloads map[Subject]Hold
	Tenants   map[string]Hold
}

// OfProcess returns the hold of a process of a tenant.
func (h *Holds) OfProcess(pid int, tenant string) Hold {
	if h.Process == nil {
		return 0
	}
	return h.Process(pid, tenant)
}

// Holds adds what an audit remembers: tenants of which a process was Starved within its windows.
func (a *Audited) Holds(h Holds) Holds {
	for tenant := range a.Refused {
		h.Tenants[tenant] |= Starved
	}
	return h
}

// Of returns the hold of a workload: its own, and its tenant's.
func (h *Holds) Of(s Subject) Hold { return h.Workloads[s] | h.Tenants[s.Tenant] }
