package incident

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// An XID is an entry of NVIDIA's catalogue: a fault of a GPU, by its code.
type XID struct {
	Code        int
	Mnemonic    string
	Description string
	Category    string // the catalogue's: "FB memory", "user app"
	Class       Class  // the category, folded
	Severity    Severity
	WhoActs     string // "app owner", "node operator"
	Action      string // at once: "RESTART_APP"
	NeedsReset  bool   // only a reset of the GPU, or a reboot, ends it

	fault string // "tenant", "hardware" or "notice", by data/faults.tsv
}

// Tenant reports whether a process can cause the XID, by mistake or at will.
// Such an XID never condemns the GPU, however often it occurs.
func (x XID) Tenant() bool {
	return x.fault == "tenant" || x.fault == "" && (x.Class == ApplicationFault ||
		strings.HasPrefix(x.WhoActs, "app owner"))
}

// Hardware reports whether the XID is a fault of the GPU or its driver. Such an
// XID never counts against the process that met it.
func (x XID) Hardware() bool { return x.fault == "hardware" || x.Notice() }

// Notice reports whether the XID tells of a repair or of a state, which may come
// and go: coming again makes it no worse.
func (x XID) Notice() bool { return x.fault == "notice" }

// XIDs returns the XIDs of the catalogue, by code. The caller must not change the
// map.
func XIDs() map[int]XID { return xidTable() }

var xidTable = sync.OnceValue(func() map[int]XID {
	classes, faults, all := map[string]Class{}, map[string]string{}, map[int]XID{}
	readFacts("classes", func(row map[string]string) error {
		classes[row["category"]] = Class(row["class"])
		return nil
	})
	readFacts("faults", func(row map[string]string) error {
		faults[row["xid"]] = row["fault"]
		return nil
	})
	readFacts("xid", func(row map[string]string) error {
		code, err := strconv.Atoi(row["xid"])
		if err != nil {
			return err
		}
		severity, err := xidSeverity(row["severity"])
		// The catalogue marks a likely action with a star.
		all[code] = XID{Code: code, Mnemonic: row["mnemonic"], Description: row["description"],
			Category: row["category"], Class: classes[row["category"]],
			Severity: severity, WhoActs: row["who_acts"], Action: strings.TrimSuffix(row["immediate_action"],
				"*"), NeedsReset: row["ends"] == byReset,
			fault: faults[row["xid"]]}
		return err
	})
	return all
})

// xidSeverity reads the catalogue's word. A fatal XID puts the GPU out of
// service. An unused code is worth knowing about.
func xidSeverity(word string) (s Severity, err error) {
	switch word {
	case "fatal":
		return Emergency, nil
	case "info(unused)":
		return Info, nil
	}
	return s, s.UnmarshalText([]byte(word))
}

// Remedy says in words what an incident's action is.
func Remedy(action string) string { return cmp.Or(remedies()[action], action) }

var remedies = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	readFacts("remedies", func(row map[string]string) error {
		all[row["action"]] = row["words"]
		return nil
	})
	return all
})

// AlertableXIDs returns the codes that matter to checks, in order: the critical
// ones, and those that are known as a fault of a tenant or of the hardware.
func AlertableXIDs() []int {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(XIDs())), func(code int) bool {
		x := XIDs()[code]
		return x.Severity < Critical && x.fault == ""
	})
}

// saying is the driver's word in a line of an XID or an SXid.
type saying struct {
	what string
	word Word
}

// words are what each word means, as rows of data/words.tsv.
var words = sync.OnceValue(func() map[saying]happening {
	names, all := map[string]Word{"nonfatal": Nonfatal, "drain": Drain, "fatal": Fatal}, map[saying]happening{}
	readFacts("words", func(row map[string]string) error {
		h, err := readHappening(row)
		all[saying{row["what"], names[row["word"]]}] = h
		return err
	})
	return all
})

// An SXid is a fault of an NVSwitch, by its code, from NVIDIA's manual of the
// fabric manager, or else from the source of the driver.
type SXid struct {
	Code     int
	Name     string
	Severity Severity // Critical for what the manual or the driver calls fatal

	word Word
}

// SXids returns the SXids of the manual, by code. The caller must not change the
// map.
func SXids() map[int]SXid { return sxidTable() }

var sxidTable = sync.OnceValue(func() map[int]SXid {
	types, all := map[string]Word{"Fatal": Fatal, "Warning": Nonfatal}, map[int]SXid{}
	readFacts("sxid", func(row map[string]string) error {
		code, err := strconv.Atoi(row["sxid"])
		word, ok := types[row["event_type"]]
		if err != nil || !ok {
			return fmt.Errorf("code %q, type %q", row["sxid"], row["event_type"])
		}
		all[code] = SXid{code, row["name"], words()[saying{WhatSXid, word}].severity, word}
		return nil
	})
	return all
})
