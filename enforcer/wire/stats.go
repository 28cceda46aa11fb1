package wire

// Stats are the broker's books as of now: what STATS is answered with, as one
// JSON document in a memfd. Counters begin with the broker's process. Fields
// may be added; a reader ignores those that it does not know.
type Stats struct {
	Sessions  map[string]int    `json:"sessions"` // by state: connecting, active, stale, ...
	Hooks     []HookStats       `json:"hooks"`    // those that sessions run
	Requests  []RequestStats    `json:"requests"` // by operation and result
	Admission Durations         `json:"admission"`
	Faults    map[string]uint64 `json:"faults"` // by kind: slow and flood, for which sessions were dropped, starved of descriptors, ...
	GPUs      []GPUStats        `json:"gpus"`
	Tenants   []TenantStats     `json:"tenants"` // one for each tenant and GPU that had a session
}

// HookStats are the sessions of one version of the hook.
type HookStats struct {
	Version  string `json:"version"` // as HELLO says it, printable
	ABI      string `json:"abi"`     // of the protocol: "1.0"
	Sessions int    `json:"sessions"`
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
	Preempted       uint64  `json:"preempted"`        // turns that were cut short for a tenant that began to want
	Trials          uint64  `json:"trials"`           // of running together
	TrialsFailed    uint64  `json:"trials_failed"`    // of them: somebody would have lost by it
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
	ChargedSeconds   float64    `json:"charged_seconds"`
	Turns            uint64     `json:"turns"`
	OverrunSeconds   float64    `json:"overrun_seconds"`   // that turns went on beyond their end
	WaitSeconds      float64    `json:"wait_seconds"`      // that it wanted the GPU and had no turn
	ThrottledSeconds float64    `json:"throttled_seconds"` // that its threads waited in the gate, as its hooks say
	Launches         uint64     `json:"launches"`          // as its hooks say

	MemoryCap      uint64 `json:"memory_cap"`  // bytes; 0 none
	MemoryUsed     uint64 `json:"memory_used"` // bytes committed, those of dead sessions included
	MemoryReserved uint64 `json:"memory_reserved"`
	MemoryPeak     uint64 `json:"memory_peak"`
	MemoryDenied   uint64 `json:"memory_denied"` // requests that were refused
}
