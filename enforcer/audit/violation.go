package audit

import "cmp"

// A Subject is the unit of escalation: a workload of a tenant, on the whole
// host.
type Subject struct{ Tenant, Workload string }

// Objectives that a workload can violate.
const (
	OverCompute   = "compute"   // more of the GPU's time than its limit
	OverMemory    = "memory"    // more memory than its cap
	OverBandwidth = "bandwidth" // more of the memory's bandwidth than its part
	Unhooked      = "unhooked"  // processes that bypass the hook
	Underreported = "reports"   // its hook says less than the driver
	Sliced        = "slices"    // its processes gave themselves longer time slices
)

// A Violation is the evidence of one audit against a workload on one GPU.
type Violation struct {
	Subject
	GPU       string  // UUID
	Objective string  // one of the above
	Value     float64 // what was found: a ratio, bytes, or a number of processes
	Allowed   float64
	PIDs      []int  // of the processes concerned, at most 16
	Text      string // a sentence for people
}

// Compare orders subjects: by tenant, then by workload.
func Compare(a, b Subject) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Workload, b.Workload))
}
