package incident

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

// TestSightingsOfOneFaultAreCloseInTime checks how far apart two signs of a
// fault may be: five seconds, or two minutes if their sources differ.
func TestSightingsOfOneFaultAreCloseInTime(t *testing.T) {
	t.Parallel()
	for apart, want := range map[time.Duration][2]int{ // of one source, and of two
		0: {1, 1}, together: {1, 1}, together + second: {2, 1}, late: {2, 1}, late + second: {2, 2},
	} {
		for n, source := range []string{SourceKernel, SourceNVML} {
			d := newDesk(t)
			s := Observation{Time: d.now, Source: SourceKernel, Entity: gpu0, What: WhatXID, Code: 79, Sequence: 1}
			for range 4 { // so that one more is no news by itself
				d.hear(d.Add(s, d.now))
			}
			before := d.to(apart).tellings
			s.Time, s.Source, s.Sequence = d.now, source, 2
			d.hear(d.Add(s, d.now))
			fixture.Equal(t, d.tellings > before, n == 1 || want[n] > 1, "%v apart, by %s: told at once", apart, source)
			d.to(apart + 10*time.Minute)
			fixture.Equal(t, len(d.incidents()), want[n], "%v apart, by %s: incidents", apart, source)
		}
	}
}

// TestFirstReportPrevails adds later signs of a fault that contradict earlier
// ones, and signs that are new.
func TestFirstReportPrevails(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := func(code int, what string) Observation {
		return Observation{Time: d.now, Source: SourceNVML, Entity: gpu0, What: what, Code: code}
	}
	tell := func(s Observation) []Event { return d.Add(s, d.now) }
	tell(at(0, WhatHungTask))
	tell(at(0, WhatHungTask))
	s := at(0, WhatHungTask)
	s.PID, s.Comm, s.GI, s.Text = 77, "python3\n", "3", "it hangs"
	if told := tell(s); len(told) != 1 || told[0].PID != 77 || told[0].Comm != "python3" || told[0].GI != "3" ||
		!strings.Contains(told[0].Message, "it hangs") {
		t.Errorf("the third says who, where and what: %+v", told)
	}
	s.PID, s.Comm, s.GI, s.Text = 78, "other", "4", "it does not"
	for range 2 {
		if told := tell(s); len(told) != 0 {
			t.Errorf("what says otherwise is told: %+v", told)
		}
	}
	d.to(time.Minute)
	if e := d.incidents()[0]; e.Count != 5 || e.PID != 77 || e.Comm != "python3" || e.GI != "3" ||
		!strings.Contains(e.Message, "it hangs") {
		t.Errorf("in the end: %+v", e)
	}
}

// TestRepetitionIsReportedWhenItDoubles counts the reports of repeated
// sightings of a fault: at one, two, four and so on, and of the rest at the
// end.
func TestRepetitionIsReportedWhenItDoubles(t *testing.T) {
	t.Parallel()
	for n, want := range []int{0, 1, 2, 3, 3, 4, 4, 4, 4, 5} {
		d := newDesk(t)
		for i := range n {
			d.kernel(uint64(i), "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 30000, x")
		}
		if d.to(time.Minute); d.tellings != want || n > 0 && d.incidents()[0].Count != n {
			t.Errorf("%d sightings are told %d times, want %d", n, d.tellings, want)
		}
	}
}

// TestOnlyAProcessOnTheGPUIsTheCulprit has lines of an XID that name many
// processes. Only the last was on the GPU. The first eight are looked up.
func TestOnlyAProcessOnTheGPUIsTheCulprit(t *testing.T) {
	t.Parallel()
	for others, want := range map[int]int{mostMentions - 1: 5, mostMentions: 0} {
		d := newDesk(t)
		d.stays = []collectors.Stay{{Process: process(5, "job", "slurm:5")}}
		for n := range others {
			for range 2 { // a repeated process takes no room
				d.kernel(uint64(n), line(100+n, "bystander"))
			}
		}
		d.kernel(uint64(others), line(5, "job"))
		fixture.Equal(t, d.incidents()[0].PID, want, "beside %d others: process", others)
	}
}

// TestIncidentsOfOneMomentHaveIDsOfTheirOwn holds that faults that the driver
// reports within one millisecond stay apart.
func TestIncidentsOfOneMomentHaveIDsOfTheirOwn(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for code := range uint64(3) {
		d.nvml(0, "xid", 61+code)
		d.nvml(1, "xid", 61+code)
	}
	d.kernel(7, "NVRM: Xid (PCI:0000:00:06): 79, x")
	if ids := slices.Compact(slices.Sorted(slices.Values(d.ids))); len(ids) != 7 ||
		!slices.Contains(ids, "01234567-7") {
		t.Errorf("%q", ids)
	}
}

// TestOpenIncidentsAreBounded checks which incident makes room, and that this
// counts as a loss only while more of that incident may come.
func TestOpenIncidentsAreBounded(t *testing.T) {
	t.Parallel()
	for after, lost := range map[time.Duration]uint64{0: 1, together: 1, together + second/2: 0} {
		d := newDesk(t)
		add := func(n int) []Event {
			return d.Add(Observation{Time: d.now, Source: SourceSysFS, Entity: gpu0, What: fmt.Sprint("fault ", n),
				Sequence: uint64(n)}, d.now)
		}
		for n := range mostOpen {
			add(n)
		}
		add(1)
		d.now = d.now.Add(after)
		if told := add(mostOpen); len(d.open) != mostOpen || d.Losses().ClosedEarly != lost || len(told) == 0 {
			t.Errorf("after %v: %d open, %+v", after, len(d.open), d.Losses())
		}
		if slices.ContainsFunc(d.open, func(i *openIncident) bool { return i.What == "fault 0" }) {
			t.Errorf("after %v the oldest is still open", after)
		}
	}
}

// TestInvalidSeverityInATable holds that readers of a table of facts report
// an invalid severity.
func TestInvalidSeverityInATable(t *testing.T) {
	t.Parallel()
	row := map[string]string{"severity": "awful"}
	if _, _, err := verdictOf(row); err == nil {
		t.Error("a verdict")
	}
	if _, err := readHappening(row); err == nil {
		t.Error("a happening")
	}
	if _, err := xidSeverity("awful"); err == nil {
		t.Error("an XID")
	}
}
