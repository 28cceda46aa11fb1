package exporter

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gpusteward/collectors"
)

// A Fault is a present or past fault of a GPU or of the node.
type Fault struct {
	UUID string `json:"uuid,omitempty"` // of the GPU; empty for a fault of the node
	// in words: "XID 79", "Rows of GPU memory wait for a reset to be replaced."
	What     string     `json:"what"`
	Check    string     `json:"check,omitempty"`    // the failing check; empty for a counted XID
	Severity string     `json:"severity,omitempty"` // of the check: info, warning, critical or emergency
	Count    float64    `json:"count,omitempty"`    // XIDs since the agent opened the GPU
	Last     *time.Time `json:"last,omitempty"`     // time of the last XID, or since when the check fails
	Command  string     `json:"command,omitempty"`  // what an operator runs next about the failing check

	Finding
}

// A Finding is what is known of a failing check beside its sentence.
type Finding struct {
	Entity   string     `json:"entity,omitempty"`   // what is at fault, as gpusteward ack takes it
	Workload string     `json:"workload,omitempty"` // whose fault it is, and not the GPU's
	Tenant   string     `json:"tenant,omitempty"`   // the same
	Shadow   bool       `json:"shadow,omitempty"`   // the check is in shadow mode: it sends no alert
	Latched  bool       `json:"latched,omitempty"`  // it stays until a reset, a reboot or gpusteward ack
	Value    *float64   `json:"value,omitempty"`    // the last reading
	Limit    string     `json:"limit,omitempty"`    // from which on the check fails: "> 0.05, 6 of 6 in 1m"
	Worst    *float64   `json:"worst,omitempty"`    // reading of this fault
	WorstAt  *time.Time `json:"worst_at,omitempty"`
	// when the fault ended, and when it will be forgotten unless it returns; nil: it lasts
	Recovered *time.Time `json:"recovered,omitempty"`
	Clears    *time.Time `json:"clears,omitempty"`
	Action    string     `json:"action,omitempty"`  // what to do
	Runbook   string     `json:"runbook,omitempty"` // URL of the entry in the runbook
}

// commands look further into a fault, by check.
var commands = map[string]string{
	"broker":         "systemctl status gpusteward-broker",
	"driver_unbound": "journalctl -k -g NVRM",
	"fabric_state":   "systemctl status nvidia-fabricmanager",
}

// next returns the command to run next about a failing check of a GPU, or of the
// node if gpu is negative. It has no name that others chose.
func (f Fault) next(gpu int) string {
	text := commands[f.Check]
	switch {
	case f.Check == "", f.Recovered != nil:
		return ""
	case f.Latched:
		return "sudo gpusteward ack " + f.Check + " " + f.Entity
	case text == "":
		text = "gpusteward check --only=" + f.Check
		if gpu >= 0 {
			text += fmt.Sprintf(" --gpu=%d", gpu)
		}
	}
	return text
}

// seenXIDs are the XIDs of a GPU seen so far, by code.
type seenXIDs map[string]*Fault

// of returns the entry of s's XID.
func (x *seenXIDs) of(s collectors.Sample) *Fault {
	code := label(s, "xid")
	if *x == nil {
		*x = seenXIDs{}
	}
	if (*x)[code] == nil {
		(*x)[code] = &Fault{What: "XID " + code}
	}
	return (*x)[code]
}

// all returns the XIDs, the newest first.
func (x seenXIDs) all() (all []Fault) {
	for _, f := range x {
		if f.Count > 0 {
			all = append(all, *f)
		}
	}
	slices.SortFunc(all, func(a, b Fault) int {
		return cmp.Or(b.when().Compare(a.when()), cmp.Compare(a.What, b.What))
	})
	return all
}

// when returns when f was last seen; the zero time if that is unknown.
func (f Fault) when() (t time.Time) {
	if f.Last != nil {
		t = *f.Last
	}
	return t
}
