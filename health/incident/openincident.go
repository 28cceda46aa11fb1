package incident

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors/host"
)

// Values of What for which there are tables of codes.
const (
	WhatXID      = "xid"
	WhatSXid     = "sxid"
	WhatRecovery = "recovery_action"
)

// Values of What, rows of data/kernel.tsv, that are judged by further facts.
const (
	WhatOOM          = "oom"
	WhatHungTask     = "hung_task"
	WhatDriverLoaded = "driver_loaded"
	ofDriverTask     = "_driver_task" // the end of those about a thread of the driver
	whatDriverStack  = "driver_stack"
	whatHardware     = "mce"
	whatCorrected    = "mce_corrected"
	whatHardwarePart = "mce_part"
	whatSilent       = "device_silent"
)

// The XID and the check that concern the driver's recovery action.
const (
	RecoveryXID   = 154 // reports a new recovery action
	RecoveryCheck = "gpu_recovery_action"
)

// The longest texts that are kept.
const (
	LongestMessage = 300 // bytes
	longestComm    = 64  // bytes
)

// aerCheck is the check of PCIe errors of GPUs.
const aerCheck = "pcie_aer"

// OwnChecks are the checks that report an XID in place of xid_fatal.
var OwnChecks = map[int]string{64: "remap_failed", 79: "gpu_lost"}

// A key is the part that all observations of one incident share.
type key struct {
	entity Entity
	what   string
	code   int
	pid    int // of a fault of one process, as perProcess has them
}

// perProcess are the faults of one process each: those of several within 5 s are
// as many incidents. A workload at its limit can lose as many processes as it
// likes, so those of oom_cgroup are one.
var perProcess = []string{WhatOOM, WhatHungTask, "hung" + ofDriverTask, "memory_failure"}

// keyOf leaves out a GPU's index, which changes when another GPU is lost.
func keyOf(s Observation) key {
	k := key{entity: s.Entity, what: s.What, code: s.Code}
	if slices.Contains(perProcess, s.What) {
		k.pid = s.PID
	}
	if k.entity.UUID != "" {
		k.entity.GPU = ""
	}
	return k
}

// An openIncident is an incident that may still be observed again.
type openIncident struct {
	Event
	key      key
	title    string        // a name for people
	mentions []Observation // the kernel's lines of an XID that name processes
	sure     bool          // the process owns the channel that a line names
	text     string        // the kernel's first line
	named    []string      // parts of the host
	records  []string      // of the firmware: see recordOf
	cause    *openIncident // the incident that this one accompanies
	began    time.Time     // when it was opened; may be long after First
	touched  time.Time     // when the last observation arrived
	fair     bool          // both sources should see it, and they have not been compared yet
	says     Word          // the driver's own word for the severity
	due      int           // the XID that caused it, in the driver's own words
	news     bool          // something changed since the last report
	told     int           // Count at the last report
}

// includes reports whether s may belong to i: s is close in time, or it is the
// first observation by the other source, which may be late.
func (i *openIncident) includes(s Observation) bool {
	gap := max(s.Time.Sub(i.Last), i.First.Sub(s.Time))
	return gap <= together || gap <= late && i.other() == s.Source
}

// isElsewhere reports whether i, an XID, is of another MIG instance than s: it has
// another owner then.
func (i *openIncident) isElsewhere(s Observation) bool {
	return i.isCode() && i.GI != "" && s.GI != "" && i.GI != s.GI
}

// turns reports whether s, an XID 154, says that the driver asks for nothing any
// more, or for something anew.
func (i *openIncident) turns(s Observation) bool {
	before, told := i.verdict()
	later, tells := verdictIn(s.Text)
	return i.What == WhatXID && told && tells && before.isNone() != later.isNone()
}

// other returns the source that should have seen i and has not; empty if there
// is none.
func (i *openIncident) other() string {
	if _, known := XIDs()[i.Code]; i.What != WhatXID || !known || i.Entity.UUID == "" || len(i.Sources) != 1 {
		return ""
	}
	if i.Sources[0] == SourceNVML {
		return SourceKernel
	}
	return SourceNVML
}

// add takes from an observation what is not known of i yet. Known facts stay:
// of several processes the first one counts, and for an XID the first one that
// was on the GPU.
func (i *openIncident) add(s Observation) {
	i.Count++
	if s.Time.After(i.Last) {
		i.Last = s.Time
	}
	if s.Time.Before(i.First) {
		i.First = s.Time
	}
	if !slices.Contains(i.Sources, s.Source) {
		i.Sources, i.news = append(i.Sources, s.Source), true
	}
	switch {
	case s.PID <= 0:
	case i.isCode():
		i.mention(s)
	case i.PID == 0:
		i.PID, i.Comm, i.news = s.PID, Clean(s.Comm, longestComm), true
	}
	if s.Says > i.says { // the worst of several lines
		i.says, i.news = s.Says, true
		if i.text != "" && s.Text != "" && !strings.HasPrefix(s.Text, "Severity ") {
			i.text = s.Text // it names the link that is worse
		}
		i.judge()
	}
	if i.due == 0 && s.Due != 0 && s.Due != i.Code {
		i.due, i.news = s.Due, true
	}
	if i.GI == "" && s.GI != "" {
		i.GI, i.news = s.GI, true
	}
	i.say(s.Text)
	i.names(s.Part)
	if i.tenants() {
		i.Check = "xid_tenant"
	}
}

// say takes what a line says: as the incident's text if it has none, or if the driver asks for more than at first.
func (i *openIncident) say(text string) {
	if record := recordOf(text); !slices.Contains(i.records, record) && (i.What == whatHardware || i.What == whatCorrected) {
		i.records = append(i.records[max(0, len(i.records)+1-mostRecords):], record)
	}
	if text == "" {
		return
	}
	if before, told := i.verdict(); told {
		if later, ok := verdictIn(text); ok && later.severity > before.severity {
			i.text = ""
		}
	}
	if i.text != "" {
		return
	}
	i.text, i.news = text, true
	if verdict, ok := i.verdict(); ok {
		i.decide(verdict)
		i.advise("")
	}
}

// recordOf returns what all lines of a record of the firmware begin with: its
// number.
func recordOf(text string) string {
	number, _, _ := strings.Cut(text, "[Hardware Error]:")
	return number
}

// Bounds of what lines name.
const (
	mostRecords  = 8                      // of an incident
	longestParts = LongestMessage * 2 / 3 // bytes
)

// names adds a part of the host that a line names, unless the first line does.
func (i *openIncident) names(part string) {
	part = Clean(part, longestComm)
	if part != "" && !strings.Contains(i.text+" ", part+" ") && !slices.Contains(i.named, part) &&
		len(strings.Join(i.named, ", "))+len(part) < longestParts {
		i.named, i.news = append(i.named, part), true
	}
}

// mention notes the process in a line of the kernel: owners of channels first, in the order of the lines.
func (i *openIncident) mention(s Observation) {
	known := func(m Observation) bool { return m.PID == s.PID && (m.Owned || !s.Owned) }
	if slices.ContainsFunc(i.mentions, known) || len(i.mentions) == mostMentions && !s.Owned {
		return
	}
	at := len(i.mentions)
	if s.Owned {
		if first := slices.IndexFunc(i.mentions, func(m Observation) bool { return !m.Owned }); first >= 0 {
			at = first
		}
	}
	i.mentions = slices.Insert(i.mentions, at, s)
	i.mentions = i.mentions[:min(len(i.mentions), mostMentions)]
}

// tenants reports whether a process, known or not, is to blame for i, an XID.
func (i *openIncident) tenants() bool {
	return i.What == WhatXID && len(i.mentions) > 0 && XIDs()[i.Code].Tenant() && i.due == 0
}

// isCode reports whether i is an XID or an SXid.
func (i *openIncident) isCode() bool { return i.What == WhatXID || i.What == WhatSXid }

// judge fills in the facts of the tables. A code that no table has is a warning:
// it is neither harmless nor known to be a fault. The driver's own word in the
// line goes before the table: the same code can be either.
func (i *openIncident) judge() {
	switch i.What {
	case WhatXID:
		x, known := XIDs()[i.Code]
		i.title = fmt.Sprintf("XID %d, %s (%s)", i.Code, x.Description, x.Mnemonic)
		i.Class, i.Severity, i.Action, i.NeedsReset = x.Class, x.Severity, x.Action, x.NeedsReset
		switch {
		case !known:
			i.title = fmt.Sprintf("XID %d, which is not in the table of XIDs", i.Code)
			i.Severity, i.Check = Warning, "xid_unknown"
		case OwnChecks[i.Code] != "":
			i.Check = OwnChecks[i.Code]
		case x.Severity >= Critical:
			i.Check = "xid_fatal"
		}
	case WhatSXid:
		x, known := SXids()[i.Code]
		i.title = fmt.Sprintf("SXid %d, %s", i.Code, x.Name)
		i.Class, i.Severity = InterconnectFault, x.Severity
		if !known {
			i.title = fmt.Sprintf("SXid %d, which is not in the table of SXids", i.Code)
			i.Severity = Warning
		}
		i.obey(x.word)
	default:
		h := happenings()[i.What]
		i.title, i.Class, i.Severity, i.Check, i.Action, i.NeedsReset = h.text, h.class, h.severity, h.check,
			h.action, h.reset
		if (i.Check == aerCheck || i.What == whatSilent) && i.Entity.UUID == "" { // of a disk, a network card or a port
			if i.Check, i.NeedsReset = "", false; i.Severity > Warning {
				i.Severity, i.Action = Warning, "INSPECT_DEVICE"
			}
		}
	}
	i.obey(i.says)
	if verdict, ok := i.verdict(); ok {
		i.decide(verdict)
	}
}

// obey judges i by a word for its severity, unless it is as bad already.
func (i *openIncident) obey(said Word) {
	w, ok := words()[saying{i.What, said}]
	if !ok || said >= Drain && i.Severity >= w.severity && i.Check != "" || said == Nonfatal && i.Severity <= w.severity {
		return
	}
	i.Severity, i.Check, i.Action, i.NeedsReset = w.severity, w.check, w.action, w.reset
}

// decide applies the driver's verdict to i, which reports one.
func (i *openIncident) decide(verdict action) {
	i.Action, i.Severity, i.Check, i.news = verdict.name, max(i.Severity, verdict.severity), RecoveryCheck, true
	i.NeedsReset = i.NeedsReset || verdict.reset
}

// codeNames are the names of codes for people.
var codeNames = map[string]string{WhatXID: "XID", WhatSXid: "SXid"}

// message describes i in one line.
func (i *openIncident) message() string {
	end := Clean(i.whose(), LongestMessage/2)
	if i.GI != "" {
		end = ", MIG instance " + i.GI + end
	}
	for _, part := range i.named {
		end += ", " + part
	}
	if i.isCode() && i.Workload != "" {
		end += Clean(", of "+i.Workload, LongestMessage/4)
	}
	switch r := i.root(); {
	case r != i && r.isCode():
		end += fmt.Sprintf(", follows %s %d", codeNames[r.What], r.Code)
	case r != i:
		end += ", follows " + r.What
	case i.due != 0:
		end += fmt.Sprintf(", follows XID %d", i.due)
	}
	text := i.title
	line := host.Unescape(strings.TrimSuffix(strings.ReplaceAll(i.text, `\x0aNVRM:`, ""), ".")) // of several lines in one record
	if line != "" && !strings.Contains(strings.ToLower(text), strings.ToLower(line)) {
		text += ": " + line
	}
	return Clean(text, LongestMessage-len(end)) + end
}
