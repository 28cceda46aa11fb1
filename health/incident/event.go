package incident

import "time"

// EventVersion is the version of Event's JSON form.
const EventVersion = 1

// A Kind says what an Event tells of.
type Kind string

// The kinds of events.
const (
	KindIncident    Kind = "incident"    // something happened: an XID, a storm of ECC errors, a line of the kernel
	KindTransition  Kind = "transition"  // a check's state changed
	KindAck         Kind = "ack"         // an operator cleared a latched fault
	KindAgent       Kind = "agent"       // of the agent itself: it started, its journal was repaired
	KindEnforcement Kind = "enforcement" // the enforcer's ladder moved for a workload
)

// An Event is one record of the journal, one element of /api/v1/events. A
// later one with the same ID replaces the earlier: an incident is told at
// once and again when more of it was seen. It never holds command lines or
// environments.
type Event struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Kind    Kind      `json:"kind"`
	Time    time.Time `json:"time"` // of the record
	Boot    string    `json:"boot_id,omitempty"`
	Node    string    `json:"node,omitempty"`
	Entity  Entity    `json:"entity"`

	What     string   `json:"what,omitempty"`  // of an incident: "xid", "sxid", "ecc_sbe_storm", "soft_lockup"
	Code     int      `json:"code,omitempty"`  // of an XID or SXid
	Class    Class    `json:"class,omitempty"` // one of six
	Check    string   `json:"check,omitempty"`
	Severity Severity `json:"severity"`
	From     State    `json:"from"` // of a transition
	To       State    `json:"to"`
	Latched  bool     `json:"latched,omitempty"`
	Shadow   bool     `json:"shadow,omitempty"`  // of a transition: nobody is told, and nobody acts on it
	Follows  string   `json:"follows,omitempty"` // ID of the incident that this one comes along with: it is none of its own

	Was    string `json:"was,omitempty"`    // of an enforcement: the rung before, "warn"
	Now    string `json:"now,omitempty"`    // and since
	Result string `json:"result,omitempty"` // what came of it: "done", "shadow", "braked", "missed", "failed"

	Sources []string  `json:"sources,omitempty"` // "nvml", "kmsg", "sysfs"
	Count   int       `json:"count,omitempty"`   // observations that are this incident
	First   time.Time `json:"first,omitzero"`    // when it was seen first
	Last    time.Time `json:"last,omitzero"`

	Value     float64 `json:"value,omitempty"`
	Threshold float64 `json:"threshold,omitempty"`
	Window    string  `json:"window,omitempty"` // "6 of 6 in 1m"

	PID      int      `json:"pid,omitempty"`
	Comm     string   `json:"comm,omitempty"`
	Workload string   `json:"workload,omitempty"` // whose the process is
	Owner    string   `json:"owner,omitempty"`    // whose the workload is: "user:1001", "namespace:serving"
	GI       string   `json:"gi,omitempty"`       // MIG GPU instance
	Present  []Holder `json:"present,omitempty"`  // on the GPU then, where it is not known whose doing an XID was

	Action   string `json:"action,omitempty"` // what to do, in a word
	Driver   string `json:"driver,omitempty"` // version
	Message  string `json:"message,omitempty"`
	Injected bool   `json:"injected,omitempty"` // of a test or a simulated host
}

// A Class is one of the six classes of faults.
type Class string

// The classes.
const (
	MemoryFault       Class = "memory-fault"
	ComputeTimeout    Class = "compute-timeout"
	HardwareFault     Class = "hardware-fault"
	DriverCrash       Class = "driver-crash"
	InterconnectFault Class = "interconnect-fault"
	ApplicationFault  Class = "application-fault"
)

// Classes are all six.
var Classes = []Class{MemoryFault, ComputeTimeout, HardwareFault, DriverCrash, InterconnectFault, ApplicationFault}
