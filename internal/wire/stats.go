package wire

import "gpusteward/internal/quota"

// Stats are the broker's books as of now: what STATS is answered with, as one
// JSON document in a memfd. Counters begin with the broker's process. Fields
// may be added; a reader ignores those that it does not know.
type Stats struct {
	Sessions  map[string]int    `json:"sessions"` // by state: connecting, active, stale, ...
	Hooks     []HookStats       `json:"hooks"`    // those that sessions run
	Requests  []RequestStats    `json:"requests"` // by operation and result
	Admission Durations         `json:"admission"`
	Faults    map[string]uint64 `json:"faults"`  // by kind: slow and flood, for which sessions were dropped, starved of descriptors, ...
	Starved   bool              `json:"starved"` // of late it could not serve somebody for want of something
	GPUs      []GPUStats        `json:"gpus"`
	Tenants   []TenantStats     `json:"tenants"` // one for each tenant and GPU that had a session
	Enforcer  *EnforcerStats    `json:"enforcer,omitempty"`
}

// EnforcerStats are what the enforcer beside the broker adds: what quotas
// promise and whether they are kept. Counters begin with its process.
type EnforcerStats struct {
	Quotas     []QuotaStats      `json:"quotas"`    // one for each tenant of the policy and GPU
	Workloads  []WorkloadStats   `json:"workloads"` // of governed tenants, one for each GPU that they are on
	Escalation []EscalationStats `json:"ladder"`    // who is on it, or was in the last hour
	Actions    []ActionStats     `json:"actions"`
	MPS        []MPSStats        `json:"mps,omitempty"` // servers
	Gemini     []GeminiStats     `json:"gemini,omitempty"`
	Refused    int               `json:"refused"` // files of tenants that are bad
}

// GeminiStats are one server for programs under Gemini's hook.
type GeminiStats struct {
	Listen   string            `json:"listen"`  // its address
	GPU      string            `json:"gpu"`     // UUID; empty where it is not known
	Clients  int               `json:"clients"` // processes
	BadLines int               `json:"bad_lines"`
	Requests map[string]uint64 `json:"requests"` // by operation: quota, memory_limit, memory_update
	Faults   map[string]uint64 `json:"faults"`   // by kind
	Tenants  []GeminiTenant    `json:"tenants"`

	Processes map[int]string `json:"-"` // under the hook, as far as they are known, by PID: the tenant
}

// A GeminiTenant is a name of its table, with gemini: before it.
type GeminiTenant struct {
	TenantStats          // those that the protocol tells; Sessions are processes
	Guarantee   float64  `json:"guarantee"`        // of the GPU's time, 0 to 1
	Charge      *float64 `json:"charge,omitempty"` // as a quota's
}

// QuotaStats are what a tenant was promised of one GPU. Ratios are 0 to 1.
type QuotaStats struct {
	Tenant string `json:"tenant"`
	GPU    string `json:"gpu"` // UUID
	quota.Quota
	Charge  *float64   `json:"charge,omitempty"` // SM time over charged time of its sessions, as a part of the GPU's: the audit's drift
	Bus     *float64   `json:"bus,omitempty"`    // of the memory's bandwidth that it used in the last window
	QoS     []QoSStats `json:"qos"`
	Holders []Holder   `json:"holders"` // which backend holds what
}

// QoSStats count windows in which a tenant wanted what it was guaranteed.
type QoSStats struct {
	Objective  string `json:"objective"` // compute, memory, launch_wait
	Windows    uint64 `json:"windows"`
	Violations uint64 `json:"violations"` // of them, those in which it did not get it
}

// A Holder is the backend that holds a part of a quota.
type Holder struct {
	Resource string `json:"resource"` // compute, memory, copies
	Backend  string `json:"backend"`  // hook, mps, kernel, none
}

// WorkloadStats are the audit of one workload on one GPU.
type WorkloadStats struct {
	Tenant     string            `json:"tenant"`
	Workload   string            `json:"workload"`
	GPU        string            `json:"gpu"` // UUID
	Processes  int               `json:"processes"`
	Unhooked   int               `json:"unhooked"`        // of them, those without a session
	Under      int               `json:"under"`           // those whose hook says less than the driver
	Drift      *float64          `json:"drift,omitempty"` // bytes that the driver counts above the books, of those with a session
	Violations map[string]uint64 `json:"violations"`      // audits that found one, by objective
}

// EscalationStats are where a workload stands in the escalation.
type EscalationStats struct {
	Tenant   string `json:"tenant"`
	Workload string `json:"workload"`
	Level    string `json:"rung"`   // observe, warn, throttle, pause, terminate
	Shadow   bool   `json:"shadow"` // beyond warn it is only said
}

// ActionStats count what the escalation did.
type ActionStats struct {
	Tenant   string `json:"tenant"`
	Workload string `json:"workload"`
	Action   string `json:"action"` // the level that was entered, or resume
	Result   string `json:"result"` // done, shadow, braked, missed, failed
	Count    uint64 `json:"count"`
}

// MPSStats are one server of CUDA MPS.
type MPSStats struct {
	PID     int     `json:"pid"`
	UID     int     `json:"uid"`
	Tenant  string  `json:"tenant"`  // that it serves, empty where that is not one
	Threads float64 `json:"threads"` // active thread percentage as a part, 0 to 1; what clients get that come from now on
	Clients int     `json:"clients"`
}

// HookStats are the sessions of one version of the hook.
type HookStats struct {
	Version  string `json:"version"` // as HELLO says it, printable
	ABI      string `json:"abi"`     // of the protocol: "1.0"
	Sessions int    `json:"sessions"`
	Unknown  uint32 `json:"unknown"` // entries of the driver that it does not know and that a session was given, most
}

// RequestStats counts the requests with one operation and result.
type RequestStats struct {
	Op     string `json:"op"`     // the message's type in lower case: reserve, acquire, ...
	Result string `json:"result"` // ok, denied, or the error's code in lower case: limit, state, ...
	Count  uint64 `json:"count"`
}

// Durations is a histogram of how long something took.
type Durations struct {
	Bounds  []float64 `json:"bounds"`  // seconds, rising
	Counts  []uint64  `json:"counts"`  // by bound, not cumulative; one more for what took longer
	Seconds float64   `json:"seconds"` // sum
}

// GPUStats are what belongs to no tenant of a GPU.
type GPUStats struct {
	GPU             string  `json:"gpu"`              // UUID, as NVML writes it
	HandoverSeconds float64 `json:"handover_seconds"` // that went into passing it from one tenant to the next
	TogetherSeconds float64 `json:"together_seconds"` // that several tenants ran at once, because they do not fill it
	Preempted       uint64  `json:"preempted"`        // times that a tenant was paused because another goes first
	Gangs           uint64  `json:"gangs"`            // tenants that were found to wait for themselves across GPUs
}

// ShareStats is a part of a GPU's time over a window, 0 to 1.
type ShareStats struct {
	Target float64 `json:"target"` // by weights and limits, of those who wanted the GPU
	Actual float64 `json:"actual"` // charged
}

// TenantStats are the books of one tenant on one GPU.
type TenantStats struct {
	Tenant   string `json:"tenant"`
	GPU      string `json:"gpu"` // UUID, as NVML writes it
	Sessions int    `json:"sessions"`

	Weight           float64    `json:"weight"`
	Limit            float64    `json:"limit"` // of the GPU's time, 0 to 1
	Share1s          ShareStats `json:"share_1s"`
	Share10s         ShareStats `json:"share_10s"`
	ChargedSeconds   float64    `json:"charged_seconds"`   // its work was on the GPU; what ran at once shares the time
	ServedSeconds    float64    `json:"served_seconds"`    // that it would have needed alone for what it did
	WantedSeconds    float64    `json:"wanted_seconds"`    // it had work, or launches that waited
	LagSeconds       float64    `json:"lag_seconds"`       // that it is owed; below 0 it is ahead
	ConvoySeconds    float64    `json:"convoy_seconds"`    // its work on this GPU waited for its work on another, which was held back
	LongestSeconds   float64    `json:"longest_seconds"`   // one launch, of the last minutes
	GatePassed       uint64     `json:"gate_passed"`       // launches that were let pass because what they waited for did not come
	GateErrors       uint64     `json:"gate_errors"`       // launches that could not be governed
	Uncounted        uint64     `json:"uncounted"`         // allocations that could not be booked
	Turns            uint64     `json:"turns"`             // times that it was let run
	OverrunSeconds   float64    `json:"overrun_seconds"`   // that it had work under way long after it was paused
	Overruns         uint64     `json:"overruns"`          // times that it did not drain in time
	WaitSeconds      float64    `json:"wait_seconds"`      // that it was held back, of those in which it wanted the GPU
	ThrottledSeconds float64    `json:"throttled_seconds"` // that its threads waited in the gate, as its hooks say
	Launches         uint64     `json:"launches"`          // as its hooks say
	CopiedBytes      uint64     `json:"copied_bytes"`      // that copies were asked to move, as its hooks say
	Waits            uint64     `json:"waits"`             // times that it waited for a turn
	LateWaits        uint64     `json:"late_waits"`        // of them, those that were longer than its objective

	MemoryCap      uint64 `json:"memory_cap"`      // bytes; 0 none
	MemoryUsed     uint64 `json:"memory_used"`     // bytes committed, those of dead sessions included
	MemoryReserved uint64 `json:"memory_reserved"` // granted and not taken yet, with what is idle in leases
	MemoryPeak     uint64 `json:"memory_peak"`
	MemoryDenied   uint64 `json:"memory_denied"` // requests that were refused
	MemoryAsked    uint64 `json:"memory_asked"`  // requests that its guarantee covers
	MemoryMissed   uint64 `json:"memory_missed"` // of them, those that the driver or the broker did not grant
}
