package incident

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestStories tells the lines of testdata/stories.tsv, a second apart unless
// the last column says more, and compares what each becomes: on which entity, how bad, for which check, with
// which action, which line of the story it follows, and whether only a reset ends it.
func TestStories(t *testing.T) {
	t.Parallel()
	var d *desk
	var heads, want []string
	end := func() {
		for i, e := range d.to(time.Minute).incidents() {
			follows := cmp.Or(e.Follows, "-")
			if n := slices.Index(d.ids, e.Follows); n >= 0 {
				follows = fmt.Sprint(n)
			}
			got := fmt.Sprintf("%s %s %s %s %s%s", e.Entity, e.Severity, cmp.Or(e.Check, "-"), cmp.Or(e.Action, "-"), follows,
				map[bool]string{true: " reset"}[e.NeedsReset])
			fixture.Equal(t, got, want[i], "%s, line %d", heads[0], i)
			fixture.Equal(t, strings.Contains(e.Message, ", follows "), e.Follows != "", "%s: %q names its cause",
				heads[0], e.Message)
		}
		fixture.Equal(t, len(d.ids), len(want), "%s: incidents", heads[0])
	}
	for _, l := range lines(t, "stories") {
		if l[0] != "" {
			if d != nil {
				end()
			}
			d, heads, want = newDesk(t), l[:1], nil
		}
		wait := second
		if len(l) > 3 {
			wait = fixture.Value(time.ParseDuration(l[3]))(t)
		}
		if d.to(d.now.Sub(d.start)+wait).kernel(uint64(len(d.ids)), l[1]); l[2] != "" { // else an earlier one has it
			want = append(want, l[2])
		}
	}
	end()
}

// TestCompanionOfAnyXIDFollowsEach holds that a companion of any XID follows each of them: it is attached to the fault,
// and not to the fault's consequences. A fault of the driver follows no XID that a process can cause.
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
			tenants := XIDs()[code].Tenant() && s.What != WhatXID && s.What != WhatRecovery
			want := but != nil && !slices.Contains(but, code) && !tenants ||
				s.What == "ecc_dbe" && slices.Contains([]int{48, 94, 95}, code)
			if all := d.incidents(); s.Code != code && (all[1].Follows == all[0].ID) != want {
				t.Errorf("%s %d follows XID %d: %v, want %v", s.What, s.Code, code, !want, want)
			} else if text := fmt.Sprintf(", follows XID %d", code); s.Code != code &&
				strings.HasSuffix(all[1].Message, text) != want {
				t.Errorf("%q, want it to end in %q: %v", all[1].Message, text, want)
			}
		}
	}
}

func TestDriverVerdict(t *testing.T) {
	d := newDesk(t)
	d.nvml(0, "xid", 154) // it has no text
	e := d.incidents()[0]
	fixture.If(t, e.Severity != Info, "%+v", e)
	d.nvml(0, "recovery_action", 2)
	all := d.incidents()
	e = all[0]
	fixture.If(t, e.Severity != Emergency || e.Action != "RESTART_BM" || e.Check != "gpu_recovery_action", "%+v", e)
	if e := all[1]; e.Severity != Emergency || e.Action != "RESTART_BM" || e.Follows != all[0].ID || e.Code != 2 {
		t.Errorf("%+v", e)
	}
	d = newDesk(t)
	d.nvml(1, "recovery_action", 0)
	e = d.incidents()[0]
	fixture.If(t, e.Severity != Info || e.Action != "NONE", "%+v", e)
}

// TestMessageSaysAFaultOnce holds that an incident's message leaves out the kernel's words if the table has the same.
func TestMessageSaysAFaultOnce(t *testing.T) {
	for text, want := range map[string]int{"GPU has fallen off the bus.": 0, "something else": 1} {
		d := newDesk(t)
		d.kernel(1, "NVRM: Xid (PCI:0000:06:00): 79, "+text)
		d.to(10 * second)
		m := d.incidents()[0].Message
		fixture.If(t, strings.Count(m, "fallen off the bus") != 1 || strings.Count(m, ": something else") != want,
			"%q", m)
	}
}

// TestMessageHasTheWorstLine holds that a critical message names the link that has the fatal fault.
func TestMessageHasTheWorstLine(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 12 (0x0)")
	d.kernel(2, "NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 03 (0x0)")
	d.kernel(3, "NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 04 (0x0)")
	fixture.Contains(t, d.incidents()[0].Message, "Fatal   XC0 i0 Link 03", "the message")
}

// TestRecordOfTheFirmwareNamesItsPart holds that the message has the parts which a
// record's lines name, once, and none of another record; such a line alone is no fault.
func TestRecordOfTheFirmwareNamesItsPart(t *testing.T) {
	d := newDesk(t)
	for n, line := range []string{"{1}[Hardware Error]:  fru_text: A1", "{2}[Hardware Error]: Hardware error from APEI",
		"{2}[Hardware Error]: event severity: recoverable", "{2}[Hardware Error]:  fru_text: DIMM0",
		"{2}[Hardware Error]:  fru_text: DIMM0", "{2}[Hardware Error]:   section_type: memory error",
		"{2}[Hardware Error]:   DIMM location: NODE 3 CPU0_DIMM_G1 ", "{3}[Hardware Error]:  fru_text: B2",
		"{4}[Hardware Error]: event severity: recoverable", "{5}[Hardware Error]: event severity: corrected",
		"{4}[Hardware Error]:  fru_text: C3", "{5}[Hardware Error]:  fru_text: D4",
		"EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 offset:0x0 grain:32)",
		"EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#1 (channel:0 slot:1 page:0x2 offset:0x0 grain:32)"} {
		d.kernel(uint64(n), line)
	}
	all := d.to(10 * second).incidents()
	fixture.Need(t, len(all), 3, "incidents: %+v", all)
	for n, want := range []string{"from APEI, fru_text: D4",
		": recoverable, fru_text: DIMM0, DIMM location: NODE 3 CPU0_DIMM_G1, fru_text: C3",
		"on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 offset:0x0 grain:32), CPU_SrcID#1_MC#1_Chan#0_DIMM#1"} {
		fixture.If(t, !strings.HasSuffix(all[n].Message, want), "%q", all[n].Message)
	}
}
