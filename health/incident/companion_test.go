package incident

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCompanions(t *testing.T) {
	t.Parallel()
	xid := func(bus string, code int, text string) string {
		return fmt.Sprintf("NVRM: Xid (PCI:0000:%s): %d, pid='<unknown>', name=<unknown>, %s", bus, code, text)
	}
	const first, other, verdict = "00:06", "9b:00",
		"GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
	for name, c := range map[string]struct {
		lines   []string
		follows []int // by line; -1 for nothing
		action  string
	}{
		"45 follows its cause": {[]string{xid(first, 94, ""), xid(first, 45, "")},
			[]int{-1, 0}, "RESTART_APP"},
		"45 comes first": {[]string{xid(first, 45, ""), xid(first, 94, "")}, []int{1, -1}, ""},
		"45 alone": {[]string{xid(first, 45, ""), xid(other, 94, "")}, []int{-1, -1},
			"WORKFLOW_XID_45"},
		"48 and 63 are drain and reset": {[]string{xid(first, 48, ""), xid(first, 63, "")},
			[]int{-1, 0}, "DRAIN_RESET"},
		"63 alone": {[]string{xid(first, 63, "")}, []int{-1}, "IGNORE"},
		"74 at both ends": {[]string{xid(first, 74, ""), xid(other, 74, "")}, []int{-1, 0},
			"WORKFLOW_NVLINK_ERR"},
		"154 has the verdict": {[]string{xid(first, 119, ""), xid(first, 154, verdict)},
			[]int{-1, 0}, "RESTART_BM"},
		"154 alone": {[]string{xid(first, 154, verdict), xid(other, 119, "")},
			[]int{-1, -1}, "RESTART_BM"},
		"79 and the line without an XID": {[]string{xid(first, 79, ""),
			"NVRM: GPU 0000:00:06.0: GPU has fallen off the bus."}, []int{-1, 0}, "RESTART_BM"},
		"the line without an XID": {[]string{"NVRM: GPU 0000:00:06.0: GPU has fallen off the bus."},
			[]int{-1}, "RESTART_BM"},
		"45 and 154, and then their root": {[]string{xid(first, 45, ""), xid(first, 154, verdict), xid(first, 95, "")},
			[]int{2, 2, -1}, ""},
		"31 and 13 are two": {[]string{xid(first, 31, ""), xid(first, 13, "")},
			[]int{-1, -1}, "RESTART_APP"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			for i, line := range c.lines {
				d.to(time.Duration(i)*second).kernel(uint64(i), line)
			}
			d.to(10 * second)
			all := d.incidents()
			for i, e := range all {
				want := ""
				if c.follows[i] >= 0 {
					want = all[c.follows[i]].ID
				}
				if e.Follows != want || (want != "") != strings.Contains(e.Message, ", follows ") {
					t.Errorf("incident %d (%s) follows %q, want %q", i, e.Message, e.Follows, want)
				}
			}
			if len(all) != len(c.lines) || c.action != "" && all[0].Action != c.action {
				t.Errorf("%d incidents, the first with action %s, want %s", len(all), all[0].Action, c.action)
			}
		})
	}
	d := newDesk(t)
	d.kernel(1, xid(first, 94, ""))
	d.to(6*second).kernel(2, xid(first, 45, ""))
	if all := d.incidents(); all[1].Follows != "" {
		t.Errorf("%+v follows what was long before", all[1])
	}
}

// TestCompanionOfAnyXIDFollowsEach holds that a companion of any XID follows
// each of them: it is attached to the fault, and not to the fault's
// consequences.
func TestCompanionOfAnyXIDFollowsEach(t *testing.T) {
	t.Parallel()
	for follower, but := range map[Observation][]int{
		{What: WhatXID, Code: 45}:        {45, RecoveryXID},
		{What: WhatXID, Code: 154}:       {RecoveryXID},
		{What: WhatRecovery, Code: 1}:    {45},
		{What: "gsp"}:                    {45, RecoveryXID},
		{What: "gpu_init_failed"}:        {45, RecoveryXID},
		{What: "ecc_dbe"}:                nil, // no companion of an arbitrary XID
		{What: WhatXID, Code: 999999999}: nil,
	} {
		for code := range XIDs() {
			d := newDesk(t)
			cause := Observation{Time: d.now, Source: SourceKernel, Entity: gpu0, What: WhatXID,
				Code: code, Sequence: 1}
			d.hear(d.Add(cause, d.now))
			d.to(second)
			s := follower
			s.Time, s.Source, s.Entity, s.Sequence = d.now, SourceKernel, gpu0, 2
			d.hear(d.Add(s, d.now))
			want := but != nil && !slices.Contains(but, code) ||
				s.What == "ecc_dbe" && slices.Contains([]int{48, 94, 95}, code)
			if all := d.incidents(); s.Code != code && (all[1].Follows == all[0].ID) != want {
				t.Errorf("%s %d follows XID %d: %v, want %v", s.What, s.Code, code, !want, want)
			} else if text := fmt.Sprintf(", follows xid %d", code); s.Code != code &&
				strings.HasSuffix(all[1].Message, text) != want {
				t.Errorf("%q, want it to end in %q: %v", all[1].Message, text, want)
			}
		}
	}
}

func TestDriverVerdict(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.nvml(0, "xid", 154) // it has no text
	if e := d.incidents()[0]; e.Severity != Info {
		t.Errorf("%+v", e)
	}
	d.nvml(0, "recovery_action", 2)
	all := d.incidents()
	if e := all[0]; e.Severity != Emergency || e.Action != "RESTART_BM" || e.Check != "gpu_recovery_action" {
		t.Errorf("%+v", e)
	}
	if e := all[1]; e.Severity != Emergency || e.Action != "RESTART_BM" || e.Follows != all[0].ID || e.Code != 2 {
		t.Errorf("%+v", e)
	}
	d = newDesk(t)
	d.nvml(1, "recovery_action", 0)
	if e := d.incidents()[0]; e.Severity != Info || e.Action != "NONE" {
		t.Errorf("%+v", e)
	}
}

// TestMessageSaysAFaultOnce holds that an incident's message leaves out the kernel's words if
// the table has the same.
func TestMessageSaysAFaultOnce(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"GPU has fallen off the bus.": 0, "something else": 1} {
		d := newDesk(t)
		d.kernel(1, "NVRM: Xid (PCI:0000:06:00): 79, "+text)
		d.to(10 * second)
		m := d.incidents()[0].Message
		if strings.Count(m, "fallen off the bus") != 1 || strings.Count(m, ": something else") != want {
			t.Errorf("%q", m)
		}
	}
}
