package incident

import "time"

// EventVersion is the version of Event's JSON form.
const EventVersion = 1

// A Kind is the kind of an Event.
type Kind string

// The kinds of events.
const (
	KindIncident    Kind = "incident"    // a fault: an XID, a storm of ECC errors, a line of the kernel
	KindTransition  Kind = "transition"  // a check's state changed
	KindAck         Kind = "ack"         // an operator cleared a latched fault
	KindAgent       Kind = "agent"       // of the agent itself: it started, its journal was repaired
	KindEnforcement Kind = "enforcement" // the enforcer's escalation moved for a workload
	KindCrash       Kind = "crash"       // a program under the hook met a fault
)

// An Event is one record of the journal and one element of /api/v1/events. A
// later event with the same ID replaces the earlier one: an incident is reported
// at once, and again when more is known. An event never holds command lines or
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
	// of an incident: only a reset ends it, or a reboot
	NeedsReset bool `json:"needs_reset,omitempty"`
	Shadow     bool `json:"shadow,omitempty"` // of a transition: it sends no alert and has no consequences
	// ID of the incident that this one accompanies, or "xid 149" if only the driver's
	// word tells it: it does not count by itself
	Follows string `json:"follows,omitempty"`

	Was    string `json:"was,omitempty"`    // of an enforcement: the level before, "warn"
	Now    string `json:"now,omitempty"`    // the level since
	Result string `json:"result,omitempty"` // the outcome: "done", "shadow", "braked", "missed", "failed"

	Sources []string  `json:"sources,omitempty"` // "nvml", "kmsg", "sysfs"
	Count   int       `json:"count,omitempty"`   // observations of this incident
	First   time.Time `json:"first,omitzero"`    // time of the first observation
	Last    time.Time `json:"last,omitzero"`

	Value     float64 `json:"value,omitempty"`
	Threshold float64 `json:"threshold,omitempty"`
	Window    string  `json:"window,omitempty"` // "6 of 6 in 1m"

	PID      int      `json:"pid,omitempty"`
	Comm     string   `json:"comm,omitempty"`
	Workload string   `json:"workload,omitempty"` // the owner of the process
	Owner    string   `json:"owner,omitempty"`    // the owner of the workload: "user:1001", "namespace:serving"
	GI       string   `json:"gi,omitempty"`       // MIG GPU instance
	Present  []Holder `json:"present,omitempty"`  // processes on the GPU at an XID of unknown origin

	Action   string `json:"action,omitempty"` // the action to take, in a word
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
