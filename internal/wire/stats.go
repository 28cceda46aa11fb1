package wire

import "gpusteward/internal/quota"

// Stats are the broker's current books: the answer to STATS, one JSON document
// in a memfd. Counters start with the broker's process. New fields may be
// added; a reader ignores unknown ones.
type Stats struct {
	Sessions  map[string]int `json:"sessions"` // by state: connecting, active, stale, ...
	Hooks     []HookStats    `json:"hooks"`    // hooks of sessions
	Requests  []RequestStats `json:"requests"` // by operation and result
	Admission Durations      `json:"admission"`
	// by kind: slow and flood (dropped sessions), starved of descriptors, ...
	Faults   map[string]uint64 `json:"faults"`
	Starved  bool              `json:"starved"` // it recently lacked a resource to serve a client
	GPUs     []GPUStats        `json:"gpus"`
	Tenants  []TenantStats     `json:"tenants"` // one for each tenant and GPU that had a session
	Enforcer *EnforcerStats    `json:"enforcer,omitempty"`
}

// EnforcerStats are the enforcer's part: what quotas promise, and whether they
// are kept. Counters start with its process.
type EnforcerStats struct {
	Quotas     []QuotaStats      `json:"quotas"`    // one for each tenant of the policy and GPU
	Workloads  []WorkloadStats   `json:"workloads"` // of governed tenants, one for each GPU that they are on
	Escalation []EscalationStats `json:"ladder"`    // workloads that are on it, or were within the last hour
	Actions    []ActionStats     `json:"actions"`
	MPS        []MPSStats        `json:"mps,omitempty"` // servers
	Gemini     []GeminiStats     `json:"gemini,omitempty"`
	Refused    int               `json:"refused"` // bad files of tenants
	Jobs       []JobStats        `json:"jobs"`    // of processes that write a trace, one for each process and GPU
	Hangs      []HangStats       `json:"hangs"`   // present ones
	Stragglers []StragglerStats  `json:"stragglers,omitempty"`
	Unread     []UnreadStats     `json:"unread,omitempty"`  // one for each server that is known
	Kernels    []KernelStats     `json:"kernels,omitempty"` // with the most time of each workload and GPU, if they are timed

	Suspended   []SuspendedStats  `json:"suspended,omitempty"` // one for each workload and GPU
	Suspensions SuspensionStats   `json:"suspensions"`
	Overcommit  []OvercommitStats `json:"overcommit,omitempty"` // one for each overcommitted GPU that has been in use
	Held        []HeldStats       `json:"held,omitempty"`       // one for each workload and cause
}

// HeldStats describe a workload that the enforcer or its broker holds back.
type HeldStats struct {
	Tenant   string `json:"tenant"`
	Workload string `json:"workload"`
	Cause    string `json:"cause"`
	Stands   bool   `json:"stands"` // it stands still because of that, rather than have less
}

// OvercommitStats describe a GPU whose memory is given to more workloads than
// fit.
type OvercommitStats struct {
	GPU     string  `json:"gpu"`     // UUID
	Turn    float64 `json:"turn"`    // seconds for which a workload stays there at least
	Waiting int     `json:"waiting"` // workloads that want to come back, and allocations
	Longest float64 `json:"longest"` // seconds for which the first of them has been waiting
}

// SuspendedStats describe a workload whose GPU memory is in host memory.
type SuspendedStats struct {
	Tenant   string  `json:"tenant"`
	Workload string  `json:"workload"`
	GPU      string  `json:"gpu"`     // UUID
	Phase    string  `json:"phase"`   // suspending, suspended or resuming
	Why      string  `json:"why"`     // for people
	Seconds  float64 `json:"seconds"` // since the phase began
	Bytes    uint64  `json:"bytes"`   // of GPU memory that it had and that the driver no longer lists
}

// SuspensionStats count suspensions. Counters start with the enforcer's process.
type SuspensionStats struct {
	Suspended      uint64            `json:"suspended"` // workloads
	Resumed        uint64            `json:"resumed"`
	SuspendSeconds float64           `json:"suspend_seconds"`
	ResumeSeconds  float64           `json:"resume_seconds"`
	Refused        map[string]uint64 `json:"refused"` // suspensions and resumptions that failed, by reason
	Broken         uint64            `json:"broken"`  // processes that the driver broke
}

// JobStats are what a process does on one GPU, as its trace says. Counters start
// with its session. Seconds of parts are those of its main thread.
type JobStats struct {
	Tenant   string `json:"tenant"`
	Workload string `json:"workload"` // empty until it is known
	GPU      string `json:"gpu"`      // UUID
	PID      int    `json:"pid"`

	Stepping bool               `json:"stepping"` // it repeats a step now
	Steps    uint64             `json:"steps"`
	Seconds  Exponential        `json:"seconds"`            // of steps
	Median   float64            `json:"median"`             // seconds, of the last steps; 0: none yet
	Parts    map[string]float64 `json:"parts"`              // seconds of its steps by part: see StepParts
	Outside  float64            `json:"outside"`            // seconds between steps, since the first: evaluation, checkpoints
	Slow     map[string]uint64  `json:"slow"`               // slow steps by cause: see SlowCauses
	Slowdown *Slowdown          `json:"slowdown,omitempty"` // its steps take longer than usual now

	Launches        uint64  `json:"launches"` // kernels
	Graphs          uint64  `json:"graphs"`   // graph launches
	Waits           uint64  `json:"waits"`    // for the GPU
	Copies          uint64  `json:"copies"`
	CopiedBytes     uint64  `json:"copied_bytes"`
	Allocations     uint64  `json:"allocations"`
	Collectives     uint64  `json:"collectives"`
	CollectiveBytes uint64  `json:"collective_bytes"`
	Busy            float64 `json:"busy"` // seconds with work on the GPU, by sampling
	Lost            uint64  `json:"lost"` // events

	Communicators []CommunicatorStats `json:"communicators,omitempty"` // the largest, 4 at most
}

// A Slowdown says why steps take longer now than they usually do.
type Slowdown struct {
	Seconds  float64 `json:"seconds"` // of a step
	Usual    float64 `json:"usual"`   // seconds
	Cause    string  `json:"cause"`   // see SlowCauses
	Evidence string  `json:"evidence"`
}

// Part returns the part of a step's time that is beyond the usual time, 0 to 1.
func (s *Slowdown) Part() float64 { return max(0, 1-s.Usual/max(s.Seconds, s.Usual)) }

// SlowCauses explain slow steps.
var SlowCauses = map[string]string{
	"quota":      "the gate held it back for its quota",
	"collective": "its collectives took longer on the GPU: another rank came late, or the network is slow",
	"link":       "its copies or collectives took longer, and PCIe or NVLink is slower than before",
	"power":      "it waited for the GPU, whose clocks are reduced by the power limit",
	"thermal":    "it waited for the GPU, whose clocks are reduced by its temperature",
	"clocks":     "it waited for the GPU, whose clocks are lower than before: somebody set them",
	"neighbour":  "it waited for the GPU, which other processes use",
	"gpu":        "it waited for the GPU, without a known reason",
	"copy":       "it waited for copies between host and GPU",
	"memory":     "it allocated GPU memory at least twice as often",
	"reclaim":    "it made its calls late or not at all, while tasks on the host waited for memory: the host has too little",
	"storage":    "it made no calls while tasks on the host waited for storage",
	"cpu":        "it made its calls late or not at all, while it or others waited for a processor",
	"code":       "its own code computed for longer, as in compilation or garbage collection",
	"host":       "it made no calls and hardly computed: it waited for data, or for another process",
	"work":       "it launched or copied more",
	"unknown":    "no part accounts for the additional time",
}

// StepParts are the parts of a step. They add up to it.
var StepParts = []string{"launching", "waiting", "copying", "held", "host"}

// CommunicatorStats describe a process as a rank of a communicator.
type CommunicatorStats struct {
	ID       string  `json:"id"` // the same for all ranks, 16 hexadecimal digits: a hash of that by which ranks find each other
	Rank     int     `json:"rank"`
	Ranks    int     `json:"ranks"`
	Entered  uint64  `json:"entered"`  // called collectives
	Measured uint64  `json:"measured"` // those of them whose time on the GPU was measured
	Seconds  float64 `json:"seconds"`  // that time, with the wait for other ranks: the rank that comes last has the least
	Paused   float64 `json:"paused"`   // of it, in collectives longer than the median step: another rank paused
}

// HangStats describe a workload that does not get on, and the process for which
// it waits.
type HangStats struct {
	Tenant   string  `json:"tenant"`
	Workload string  `json:"workload"`
	GPU      string  `json:"gpu"`     // UUID of the culprit's
	PID      int     `json:"pid"`     // of the culprit; 0: it has ended
	Rank     int     `json:"rank"`    // of the culprit; -1: it is not a rank of a communicator
	Reason   string  `json:"reason"`  // see HangReasons
	Where    string  `json:"where"`   // where the culprit stands: file, line and function, or its system call, and for a deadlock where the others do; empty if unknown
	Seconds  float64 `json:"seconds"` // since it last got on
	Waiting  int     `json:"waiting"` // processes that wait for it, or with it
}

// HangReasons explain a hang by its culprit.
var HangReasons = map[string]string{
	"absent":    "it did not enter a collective that the others have entered",
	"kernel":    "a kernel or a graph on its GPU does not end",
	"deadlock":  "it and others wait for each other, each in a call that another one of them has not made",
	"stopped":   "it was stopped by a signal or a debugger",
	"ended":     "it has ended, and the others wait for it",
	"unlike":    "it entered a different collective from the others",
	"unknown":   "all have entered the same collective, and none ends it",
	"unread":    "it leaves the input of its clients waiting, and does nothing",
	"elsewhere": "all ranks of this host have entered a collective, and those of other hosts have not ended it",
}

// KernelStats are the GPU time of a kernel of a workload, or of a graph.
type KernelStats struct {
	Tenant   string  `json:"tenant"`
	Workload string  `json:"workload"`
	GPU      string  `json:"gpu"` // UUID
	Kernel   string  `json:"kernel"`
	Seconds  float64 `json:"seconds"` // an estimate; it only grows
}

// UnreadStats describe a program that serves clients and uses a GPU.
type UnreadStats struct {
	Tenant   string  `json:"tenant"`
	Workload string  `json:"workload"`
	GPU      string  `json:"gpu"`     // UUID of its first process's
	Seconds  float64 `json:"seconds"` // for which input has waited while it did nothing; 0: none waits
}

// StragglerStats describe a rank for which the other ranks of its communicator
// on this host wait again and again.
type StragglerStats struct {
	Tenant   string  `json:"tenant"`
	Workload string  `json:"workload"`
	GPU      string  `json:"gpu"` // UUID
	PID      int     `json:"pid"`
	Rank     int     `json:"rank"`
	Cause    string  `json:"cause"` // see StragglerCauses
	Lost     float64 `json:"lost"`  // part of a step that the others wait longer than this rank
}

// StragglerCauses explain why a rank comes late, by the parts of its steps that
// are longer than its peers'.
var StragglerCauses = map[string]string{
	"host":      "its own code, its data or its launches take longer",
	"gpu":       "its GPU takes longer, for no known reason",
	"thermal":   "its GPU takes longer, whose clocks are reduced by its temperature",
	"power":     "its GPU takes longer, whose clocks are reduced by the power limit",
	"neighbour": "its GPU takes longer, which other processes use",
	"copy":      "it waits for copies between host and GPU",
	"quota":     "the gate holds it back for its quota",
}

// An Exponential is a histogram with exponential buckets: that of index i counts
// values from 2^((i-1)/8) to 2^(i/8), which is Prometheus's native histogram of
// schema 3.
type Exponential struct {
	Buckets map[int]uint64 `json:"buckets"`
	Count   uint64         `json:"count"`
	Sum     float64        `json:"sum"`
}

// GeminiStats describe one server for programs under Gemini's hook.
type GeminiStats struct {
	Listen   string            `json:"listen"`  // its address
	GPU      string            `json:"gpu"`     // UUID; empty if unknown
	Clients  int               `json:"clients"` // processes
	BadLines int               `json:"bad_lines"`
	Requests map[string]uint64 `json:"requests"` // by operation: quota, memory_limit, memory_update
	Faults   map[string]uint64 `json:"faults"`   // by kind
	Tenants  []GeminiTenant    `json:"tenants"`

	Processes map[int]string `json:"-"` // tenants of the known processes under the hook, by PID
}

// A GeminiTenant is a name of the server's table, prefixed with gemini:.
type GeminiTenant struct {
	TenantStats          // the fields that the protocol has; Sessions counts processes
	Guarantee   float64  `json:"guarantee"`        // of the GPU's time, 0 to 1
	Charge      *float64 `json:"charge,omitempty"` // as in QuotaStats
}

// QuotaStats are the promises to a tenant on one GPU. Ratios are 0 to 1.
type QuotaStats struct {
	Tenant string `json:"tenant"`
	GPU    string `json:"gpu"` // UUID
	quota.Quota
	// SM time over charged time of its sessions, as a part of the GPU's: the drift
	// that the audit sees
	Charge  *float64   `json:"charge,omitempty"`
	Bus     *float64   `json:"bus,omitempty"` // part of the memory's bandwidth that it used in the last window
	QoS     []QoSStats `json:"qos"`
	Holders []Holder   `json:"holders"` // backends by what they hold
}

// QoSStats count windows in which a tenant wanted its guarantee.
type QoSStats struct {
	Objective  string `json:"objective"` // compute, memory, launch_wait
	Windows    uint64 `json:"windows"`
	Violations uint64 `json:"violations"` // those of them in which it did not get it
}

// A Holder is the backend that holds a part of a quota.
type Holder struct {
	Resource string `json:"resource"` // compute, memory, copies
	Backend  string `json:"backend"`  // hook, mps, kernel, none
}

// WorkloadStats are the audit's results for one workload on one GPU.
type WorkloadStats struct {
	Tenant    string `json:"tenant"`
	Workload  string `json:"workload"`
	GPU       string `json:"gpu"` // UUID
	Processes int    `json:"processes"`
	Unhooked  int    `json:"unhooked"` // those of them without a session
	Under     int    `json:"under"`    // those with a hook that reports less than the driver
	// bytes that the driver counts beyond the books, of processes with a session
	Drift      *float64          `json:"drift,omitempty"`
	Violations map[string]uint64 `json:"violations"` // audits with a violation, by objective
}

// EscalationStats are the state of a workload in the escalation.
type EscalationStats struct {
	Tenant   string `json:"tenant"`
	Workload string `json:"workload"`
	Level    string `json:"rung"`   // observe, warn, throttle, pause, terminate
	Shadow   bool   `json:"shadow"` // levels above warn are only reported
}

// ActionStats count the actions of the escalation.
type ActionStats struct {
	Tenant   string `json:"tenant"`
	Workload string `json:"workload"`
	Action   string `json:"action"` // the level that was entered, or resume
	Result   string `json:"result"` // done, shadow, braked, missed, failed
	Count    uint64 `json:"count"`
}

// MPSStats describe one server of CUDA MPS.
type MPSStats struct {
	PID    int    `json:"pid"`
	UID    int    `json:"uid"`
	Tenant string `json:"tenant"` // the tenant that it serves; empty if there is not exactly one
	// active thread percentage as a part, 0 to 1, for new clients
	Threads float64 `json:"threads"`
	Clients int     `json:"clients"`
}

// HookStats describe the sessions of one version of the hook.
type HookStats struct {
	Version  string `json:"version"` // as HELLO says it, printable
	ABI      string `json:"abi"`     // of the protocol: "1.0"
	Sessions int    `json:"sessions"`
	Unknown  uint32 `json:"unknown"` // most driver entries unknown to the hook that a session has obtained
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
	Counts  []uint64  `json:"counts"`  // by bound, not cumulative; the additional last one counts longer durations
	Seconds float64   `json:"seconds"` // sum
}

// GPUStats are the part of a GPU's books that belongs to no tenant.
type GPUStats struct {
	GPU             string  `json:"gpu"`              // UUID, as NVML writes it
	HandoverSeconds float64 `json:"handover_seconds"` // lost between the turns of two tenants
	TogetherSeconds float64 `json:"together_seconds"` // with several tenants at once, because they do not fill the GPU
	Preempted       uint64  `json:"preempted"`        // pauses of a tenant in favour of one that goes first
	Gangs           uint64  `json:"gangs"`            // tenants found waiting for themselves across GPUs
}

// ShareStats is a part of a GPU's time over a window, 0 to 1.
type ShareStats struct {
	Target float64 `json:"target"` // by weights and limits, among the tenants that wanted the GPU
	Actual float64 `json:"actual"` // charged
}

// TenantStats are the books of one tenant on one GPU.
type TenantStats struct {
	Tenant   string `json:"tenant"`
	GPU      string `json:"gpu"` // UUID, as NVML writes it
	Sessions int    `json:"sessions"`

	Weight         float64    `json:"weight"`
	Limit          float64    `json:"limit"` // of the GPU's time, 0 to 1
	Share1s        ShareStats `json:"share_1s"`
	Share10s       ShareStats `json:"share_10s"`
	ChargedSeconds float64    `json:"charged_seconds"` // with its work on the GPU; simultaneous tenants share the time
	ServedSeconds  float64    `json:"served_seconds"`  // that its work would have taken alone
	WantedSeconds  float64    `json:"wanted_seconds"`  // with work, or with waiting launches
	LagSeconds     float64    `json:"lag_seconds"`     // owed to it; below 0 it is ahead
	// its work on this GPU waited for held-back work on another
	ConvoySeconds  float64 `json:"convoy_seconds"`
	LongestSeconds float64 `json:"longest_seconds"` // longest launch of the last minutes
	// launches let pass because what they waited for did not come
	GatePassed       uint64  `json:"gate_passed"`
	GateErrors       uint64  `json:"gate_errors"`       // failures in the hook, mostly events that the driver refused
	Uncounted        uint64  `json:"uncounted"`         // allocations that could not be booked
	Turns            uint64  `json:"turns"`             // times that it was let run
	SliceSeconds     float64 `json:"slice_seconds"`     // time slice that its processes set; 0: the driver's default
	Pace             float64 `json:"pace"`              // part of the time that its launches may take; 0: all
	SlicesRefused    uint64  `json:"slices_refused"`    // time slices that the driver refused them
	OverrunSeconds   float64 `json:"overrun_seconds"`   // with work still running long after a pause
	Overruns         uint64  `json:"overruns"`          // pauses that it did not obey in time
	WaitSeconds      float64 `json:"wait_seconds"`      // held back while it wanted the GPU
	ThrottledSeconds float64 `json:"throttled_seconds"` // that its threads waited in the gate, as its hooks report
	Launches         uint64  `json:"launches"`          // as its hooks report
	CopiedBytes      uint64  `json:"copied_bytes"`      // of requested copies, as its hooks report
	Waits            uint64  `json:"waits"`             // its waits for a turn
	LateWaits        uint64  `json:"late_waits"`        // those of them beyond its objective

	MemoryCap      uint64 `json:"memory_cap"`                // bytes; 0: none
	MemoryUsed     uint64 `json:"memory_used"`               // committed bytes, with those of dead sessions
	MemoryReserved uint64 `json:"memory_reserved"`           // granted but not taken yet, with idle bytes in leases
	MemoryUnlisted uint64 `json:"memory_unlisted,omitempty"` // part of both that the driver does not list: it has no claim
	MemoryPeak     uint64 `json:"memory_peak"`
	MemoryDenied   uint64 `json:"memory_denied"` // refused requests
	MemoryAsked    uint64 `json:"memory_asked"`  // requests that its guarantee covers
	MemoryMissed   uint64 `json:"memory_missed"` // those of them that the driver or the broker did not grant
}
