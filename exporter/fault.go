package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"gpusteward/collectors"
)

// A Fault is something that is or was wrong with a GPU.
type Fault struct {
	What  string     `json:"what"`            // in words: "XID 79", "row remap pending: reset"
	Count float64    `json:"count,omitempty"` // XIDs since the agent opened the GPU, ECC errors since the driver was loaded
	Last  *time.Time `json:"last,omitempty"`
}

// faultFlags say what is wrong where a series is not 0, the worst first.
var faultFlags = []struct {
	metric *collectors.Metric
	label  string // its last; "": any
	what   string
}{
	{collectors.RowRemapFailure, "", "row remap failed"},
	{collectors.MemoryUnrepairable, "", "memory beyond repair"},
	{collectors.SRAMThreshold, "", "SRAM errors past the limit for replacement"},
	{collectors.RowRemapPending, "", "row remap pending: reset"},
	{collectors.RetiredPagesPending, "", "page retirement pending: reset"},
	{collectors.RepairPending, "channel", "channel repair pending: reset"},
	{collectors.RepairPending, "tpc", "TPC repair pending: reset"},
}

// recoveryActions are what the values of nvgpu_recovery_action ask for.
var recoveryActions = []string{"nothing", "reset", "reboot", "drain P2P", "drain and reset", "recover the IMEX domain"}

// seenFaults are the faults of a GPU that were seen so far.
type seenFaults struct {
	states map[int]Fault     // by rank
	xids   map[string]*Fault // by code
}

// faultFacts are what a GPU's samples say is wrong with it.
var faultFacts = func() map[*collectors.Metric]func(f *seenFaults, s collectors.Sample) {
	const first = -1
	m := map[*collectors.Metric]func(f *seenFaults, s collectors.Sample){
		collectors.XIDErrors: func(f *seenFaults, s collectors.Sample) { f.xid(s).Count += s.Value },
		collectors.XIDLast:   func(f *seenFaults, s collectors.Sample) { f.xid(s).Last = unixTime(s.Value) },
		collectors.RecoveryAction: func(f *seenFaults, s collectors.Sample) {
			action := "action " + strconv.Itoa(int(s.Value))
			if i := int(s.Value); i >= 0 && i < len(recoveryActions) {
				action = recoveryActions[i]
			}
			if s.Value != 0 {
				f.state(first, Fault{What: "the driver asks for: " + action})
			}
		},
		collectors.ECCErrors: func(f *seenFaults, s collectors.Sample) {
			if s.Value > 0 && label(s, "severity") == "uncorrected" && label(s, "scope") == "volatile" {
				f.state(len(faultFlags), Fault{What: "uncorrected ECC errors", Count: s.Value})
			}
		},
	}
	for _, flag := range faultFlags {
		m[flag.metric] = (*seenFaults).flag
	}
	return m
}()

func (f *seenFaults) flag(s collectors.Sample) {
	for rank, flag := range faultFlags {
		if s.Value != 0 && flag.metric == s.Metric && (flag.label == "" || flag.label == last(s)) {
			f.state(rank, Fault{What: flag.what})
		}
	}
}

func (f *seenFaults) state(rank int, fault Fault) {
	if f.states == nil {
		f.states = map[int]Fault{}
	}
	f.states[rank] = fault
}

// xid returns the entry of s's XID.
func (f *seenFaults) xid(s collectors.Sample) *Fault {
	code := label(s, "xid")
	if f.xids == nil {
		f.xids = map[string]*Fault{}
	}
	if f.xids[code] == nil {
		f.xids[code] = &Fault{What: "XID " + code}
	}
	return f.xids[code]
}

// all returns the faults: states by rank, then XIDs, the newest first.
func (f *seenFaults) all() (all []Fault) {
	for _, rank := range slices.Sorted(maps.Keys(f.states)) {
		all = append(all, f.states[rank])
	}
	states := len(all)
	for _, x := range f.xids {
		if x.Count > 0 {
			all = append(all, *x)
		}
	}
	slices.SortFunc(all[states:], func(a, b Fault) int {
		return cmp.Or(b.when().Compare(a.when()), cmp.Compare(a.What, b.What))
	})
	return all
}

// when returns when f was last seen; long ago if nobody knows.
func (f Fault) when() (t time.Time) {
	if f.Last != nil {
		t = *f.Last
	}
	return t
}
