package incident

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gpusteward/collectors/host"
)

// A happening is a row of data/kernel.tsv or data/events.tsv: the meaning of a
// line of the kernel or of an event of the driver.
type happening struct {
	name     string
	class    Class
	severity Severity
	check    string // the check that it concerns
	action   string
	reset    bool // only a reset ends it
	text     string

	literal    string // a part of every line that the expression finds; quicker to look for
	expression *regexp.Regexp
}

func readHappening(row map[string]string) (happening, error) {
	class, severity, err := verdictOf(row)
	return happening{name: row["name"], class: class, severity: severity, check: row["check"], action: row["action"],
		reset: row["ends"] == byReset, text: row["text"]}, err
}

// kernelLines are the lines of the kernel that matter. The kernel begins many a
// line with the name of a program, up to 15 bytes of its user's choice, and may
// quote a file name later. So an expression finds nothing but what the kernel or
// the driver says itself: it demands a PCI address, or more than 15 bytes, before
// it skips any text.
var kernelLines = sync.OnceValue(func() (all []happening) {
	readFacts("kernel", func(row map[string]string) error {
		h, err := readHappening(row)
		h.literal, h.expression = row["literal"], regexp.MustCompile(row["expression"])
		all = append(all, h)
		return err
	})
	return all
})

// events are the events of the driver that matter, by type. XIDs have a table of
// their own.
var events = sync.OnceValue(func() map[string]happening {
	all := map[string]happening{}
	readFacts("events", func(row map[string]string) error {
		h, err := readHappening(row)
		all[h.name] = h
		return err
	})
	return all
})

// happenings are both, by name.
var happenings = sync.OnceValue(func() map[string]happening {
	all := map[string]happening{}
	for _, h := range kernelLines() {
		all[h.name] = h
	}
	for name, h := range events() {
		all[name] = h
	}
	return all
})

// ParseLine returns the observation in a record of the kernel's log; false if
// there is none. It ignores lines that the kernel did not log itself, because
// users can write to its log. driverTask, which may be nil, reports whether a
// PID is that of a kernel thread of the driver: programs choose their names. It
// is safe for concurrent use if driverTask is.
func ParseLine(r host.Record, driverTask func(pid int) bool) (Observation, bool) {
	if !r.Kernel() {
		return Observation{}, false
	}
	for _, h := range kernelLines() {
		if !strings.Contains(r.Text, h.literal) {
			continue
		}
		m := h.expression.FindStringSubmatch(r.Text)
		if m == nil {
			continue
		}
		s := Observation{Time: r.Time, Source: SourceKernel, What: h.name, Text: r.Text, Sequence: r.Sequence}
		if h.name == WhatXID || h.name == WhatSXid {
			return s.fault()
		}
		for i, group := range h.expression.SubexpNames() {
			switch group {
			case "device":
				if m[i] != "" { // a line may name a port, and the device below it
					s.Entity.Device = address(m[i])
				}
			case "pid":
				s.PID, _ = strconv.Atoi(m[i]) // digits that do not fit are no PID
			case "comm":
				s.Comm = host.Unescape(m[i])
			case "part":
				s.Part = m[i]
			}
		}
		if strings.HasSuffix(h.name, ofDriverTask) && (driverTask == nil || !driverTask(s.PID)) {
			continue // to the row of any other task
		}
		return s, true
	}
	return Observation{}, false
}

// fault completes the observation of an XID or SXid from its text.
func (s Observation) fault() (Observation, bool) {
	f, ok := host.ParseFault(s.Text)
	s.Entity.Device, s.Code, s.PID, s.Comm, s.GI, s.Text = f.Address, f.Code, f.PID, f.Comm, f.GI, f.Text
	s.Owned = f.Owned
	m := firstWord.FindStringSubmatch(f.Text)
	if m == nil || f.PID != 0 { // a name with a comma in it may lead the text
		m = wordOfLink.FindStringSubmatch(f.Text)
	}
	switch {
	case m != nil && strings.Join(m[1:], "") != "":
		s.Says = Nonfatal
	case m != nil:
		s.Says = Fatal
	}
	if m := resetWord.FindStringSubmatch(f.Text); m != nil && !f.Switch {
		switch "Yes" {
		case m[1]:
			s.Says = Fatal
		case m[2]:
			s.Says = Drain
		}
	}
	if m := dueTo.FindStringSubmatch(f.Text); m != nil && !f.Switch {
		s.Due, _ = strconv.Atoi(m[1])
	}
	return s, ok
}

// The driver's words for a severity, "Fatal", "Non-fatal" or "Nonfatal", or
// "Correctable" of a switch: it leads the text of an SXid, whose second line has it
// as a number, and follows the name of a unit in that of an XID of NVLink 5. A
// process's name is too short for the others. An XID of memory ends in whether the
// GPU needs a reset now, or once its work has ended.
var (
	firstWord  = regexp.MustCompile(`^(?:(?:[A-Z][A-Z0-9_]*,? +)?(?i:(?:(non-?)?fatal|(correctable)))\b|Severity (?:(0)|1) Engine instance\b)`)
	wordOfLink = regexp.MustCompile(`\bNVLink: (?i:(non-?)?fatal) error detected on link\b|` +
		`\b[A-Z][A-Z0-9_]* +(?i:(non-?)?fatal) +XC\d+ i\d+ Link\b`)
	resetWord = regexp.MustCompile(`\bRST: (Yes|No), D-RST: (Yes|No)\.?$`)
	dueTo     = regexp.MustCompile(`\b(?i:(?:caused by|due to) (?:a )?previous Xid) (\d{1,4})\b`)
)

// address returns a PCI address with its domain, which some lines leave out.
func address(s string) string {
	if strings.Count(s, ":") == 1 {
		return "0000:" + s
	}
	return s
}

// Kinds returns the names of all incidents, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(happenings())) }
