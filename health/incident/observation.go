package incident

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"gpusteward/collectors"
)

// Sources of observations.
const (
	SourceNVML   = "nvml"
	SourceKernel = "kmsg"
	SourceSysFS  = "sysfs"
)

// An Observation is one sign of an incident, of which there may be several: a line
// of the kernel, an event of the driver.
type Observation struct {
	Time     time.Time
	Source   string // SourceNVML, SourceKernel or SourceSysFS
	Entity   Entity // of what the kernel names by its PCI address, Device is that
	What     string // "xid", "sxid", a name of data/events.tsv or data/kernel.tsv
	Code     int    // of an XID or SXid; the new value of recovery_action
	PID      int    // of the process at fault; 0 if none is known
	Comm     string // its name, as the source has it
	GI       string // MIG GPU instance
	Text     string // as the source has it
	Sequence uint64 // of the kernel's record
}

// ParseEvent returns what an event of the driver is a sign of; false if it is one of
// those that are no incident, such as a change of power.
func ParseEvent(e collectors.Event) (Observation, bool) {
	if _, ok := events()[e.Type]; !ok && e.Type != WhatXID {
		return Observation{}, false
	}
	s := Observation{Time: e.Time, Source: SourceNVML, Entity: Entity{GPU: strconv.Itoa(e.GPU.Index), UUID: e.GPU.UUID}, What: e.Type, GI: e.GI}
	if e.Type == WhatXID || e.Type == WhatRecovery {
		s.Code = int(min(e.Code, math.MaxInt32))
	}
	return s, true
}

// clean returns text as it may be shown: valid UTF-8 of at most most bytes
// that a reader can see, in one line.
func Clean(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return strings.TrimSpace(text)
}
