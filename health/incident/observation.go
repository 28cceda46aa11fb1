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

// An Observation is one report of a fault by one source: a line of the kernel or
// an event of the driver. An incident may have several.
type Observation struct {
	Time     time.Time
	Source   string // SourceNVML, SourceKernel or SourceSysFS
	Entity   Entity // if the kernel names a PCI address, Device is that address
	What     string // "xid", "sxid", a name of data/events.tsv or data/kernel.tsv
	Code     int    // of an XID or SXid; the new value of recovery_action
	PID      int    // of the process at fault; 0 if it is unknown
	Comm     string // its name, as the source writes it
	Owned    bool   // see host.Fault
	GI       string // MIG GPU instance
	Part     string // the part of the host that the line names, such as a memory module
	Says     Word   // the driver's own word for its severity
	Due      int    // the XID that caused it, in the driver's own words; 0 for none
	Text     string // as the source writes it
	Sequence uint64 // number of the kernel's record
}

// A Word is the driver's own word for how bad a fault is.
type Word int

// The words.
const (
	NoWord Word = iota
	Nonfatal
	Drain // the work on the GPU is to end before its reset
	Fatal
)

// ParseEvent returns the observation in an event of the driver; false for an
// event that is no fault, such as a change of power.
func ParseEvent(e collectors.Event) (Observation, bool) {
	if _, ok := events()[e.Type]; !ok && e.Type != WhatXID {
		return Observation{}, false
	}
	s := Observation{Time: e.Time, Source: SourceNVML, Entity: Entity{GPU: strconv.Itoa(e.GPU.Index), UUID: e.GPU.UUID},
		What: e.Type, GI: e.GI}
	if e.Type == WhatXID || e.Type == WhatRecovery {
		s.Code = int(min(e.Code, math.MaxInt32))
	}
	return s, true
}

// Clean returns text that is safe to show: one line of printable, valid UTF-8
// with at most the given number of bytes.
func Clean(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > most {
		for !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return strings.TrimSpace(text)
}
