package incident

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

// readable fails the test unless e's texts are printable.
func readable(t *testing.T, e Event) {
	t.Helper()
	for _, s := range []string{e.Message, e.Comm} {
		if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) ||
			len(e.Message) > LongestMessage || len(e.Comm) > longestComm {
			t.Errorf("%q cannot be shown", s)
		}
	}
	fixture.If(t, e.Message == "" || e.ID == "" || e.Version != EventVersion || e.Kind != KindIncident || e.Severity == None ||
		e.Count < 1 || len(e.Sources) == 0 || e.Last.Before(e.First), "%+v is incomplete", e)
}

// A desk has a Correlator and its reports, by ID.
type desk struct {
	*testing.T
	*Correlator
	start, now time.Time
	told       map[string]Event
	ids        []string // in the order of their first report
	tellings   int
	stays      []collectors.Stay // on either GPU
}

// process returns a process of a workload; the workload may be empty.
func process(pid int, comm, workload string) host.Process {
	p := host.Process{PID: pid, Comm: comm, Start: uint64(pid)}
	if workload != "" {
		p.Workload = &host.Workload{Key: workload}
		if pod, is := strings.CutPrefix(workload, "pod:"); is {
			p.Workload.Kind, p.Workload.Namespace = host.KindPod, strings.Split(pod, "/")[0]
		}
	}
	return p
}

// gpu0 and gpu1 are at 0000:00:06 and 0000:9b:00.
var gpu0, gpu1 = Entity{GPU: "0", UUID: "GPU-0"}, Entity{GPU: "1", UUID: "GPU-1"}

func newDesk(t *testing.T) *desk {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d := &desk{T: t, start: start, now: start, told: map[string]Event{}}
	d.Correlator = NewCorrelator(CorrelatorOptions{
		Boot: "0123456789abcdef", Node: "n1",
		GPU: func(p host.PCI) (Entity, bool) {
			e, ok := map[host.PCI]Entity{{Device: 6}: gpu0, {Bus: 0x9b}: gpu1}[p]
			return e, ok
		},
		Stays: func(string) []collectors.Stay { return d.stays },
		Works: func(string, Entity) bool { return true },
	}, start)
	return d
}

func (d *desk) hear(events []Event) {
	d.Helper()
	for _, e := range events {
		readable(d.T, e)
		if _, again := d.told[e.ID]; !again {
			d.ids = append(d.ids, e.ID)
		}
		d.told[e.ID] = e
		d.tellings++
	}
}

// to moves the clock to a time since the start, with a tick each second.
func (d *desk) to(at time.Duration) *desk {
	d.Helper()
	for d.now.Before(d.start.Add(at)) {
		d.now = d.now.Add(min(time.Second, d.start.Add(at).Sub(d.now)))
		d.hear(d.Tick(d.now))
	}
	return d
}

// kernel adds a line that the kernel logs now.
func (d *desk) kernel(sequence uint64, text string) {
	d.Helper()
	s, ok := ParseLine(host.Record{Priority: 4, Sequence: sequence, Time: d.now, Text: text}, nil)
	if !ok {
		d.Fatalf("%q is of no interest", text)
	}
	d.hear(d.Add(s, d.now))
}

// nvml adds an event of GPU 0 or 1 that the driver raises now.
func (d *desk) nvml(index int, what string, code uint64) {
	d.Helper()
	s, ok := ParseEvent(collectors.Event{Time: d.now, GPU: gpu.ID{Index: index, UUID: fmt.Sprintf("GPU-%d", index)},
		Type: what, Code: code})
	if !ok {
		d.Fatalf("%s is of no interest", what)
	}
	d.hear(d.Add(s, d.now))
}

// incidents returns the reports in their latest state.
func (d *desk) incidents() (all []Event) {
	for _, id := range d.ids {
		all = append(all, d.told[id])
	}
	return all
}

const second = time.Second

// TestRecordedKernelLog reads the log of an H100's kernel from the failure of three programs, with the driver's events.
func TestRecordedKernelLog(t *testing.T) {
	d := newDesk(t)
	for _, pid := range []int{698, 745, 787} {
		d.stays = append(d.stays, collectors.Stay{Process: process(pid, "python3", fmt.Sprintf("slurm:%d", pid))})
	}
	boot := time.Time{}
	event := 0
	_, err := host.NewKernelLog("testdata/kmsg-xid.txt").Replay(t.Context(), 0, func(r host.Record) {
		if boot.IsZero() {
			boot = r.Time.Add(-second)
		}
		d.to(r.Time.Sub(boot))
		r.Time = d.now
		s, ok := ParseLine(r, nil)
		fixture.Need(t, ok, true, "%+v is of no interest", r)
		d.hear(d.Add(s, d.now))
		if codes := []uint64{31, 43, 13}; event < 3 && s.Code == int(codes[event]) {
			d.to(d.now.Sub(d.start) + 700*time.Millisecond) // the reader's next pass
			d.nvml(0, "xid", codes[event])
			event++
		}
	})
	fixture.Must(t, err)
	d.to(5 * time.Minute)
	all := d.incidents()
	fixture.Need(t, len(all), 3, "… incidents: %+v", all)
	for i, want := range []struct {
		code, pid, count int
		id               string
	}{{31, 698, 2, "01234567-373"}, {43, 745, 2, "01234567-374"}, {13, 787, 4, "01234567-375"}} {
		e := all[i]
		fixture.If(t, e.Code != want.code || e.PID != want.pid || e.Count != want.count || e.ID != want.id ||
			e.Comm != "python3" || e.Workload != fmt.Sprintf("slurm:%d", want.pid) ||
			!slices.Equal(e.Sources, []string{"kmsg", "nvml"}) || e.Entity != gpu0 || e.Check != "xid_tenant" ||
			e.Class != ApplicationFault || e.Node != "n1" || e.Boot == "",
			"incident %d is %+v, want %+v", i, e, want)
	}
	fixture.Equal(t, d.Losses(), Losses{}, "losses")
	if m := all[0].Message; !strings.HasPrefix(m,
		"XID 31, GPU memory page fault (ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT): channel 0x0000000a") {
		t.Errorf("message %q", m)
	}
}

func TestIncidentIsReportedAtOnceAndUpdated(t *testing.T) {
	d := newDesk(t)
	d.stays = []collectors.Stay{{Process: process(5, "evil\xff\x1b[0m", "")}}
	d.nvml(0, "xid", 31)
	if all := d.incidents(); len(all) != 1 || all[0].Count != 1 || all[0].PID != 0 || all[0].Check != "" ||
		all[0].Action != "RESTART_APP" || all[0].Severity != Warning {
		t.Fatalf("%+v", all)
	}
	d.to(second).kernel(9, "NVRM: Xid (PCI:0000:00:06 GPU-I:02): 31, pid=5, name=evil\xff\x1b[0m, Ch")
	all := d.incidents()
	e := all[0]
	fixture.If(t, len(all) != 1 || e.PID != 5 || e.GI != "2" || e.Comm != "evil? [0m" || e.Count != 2 ||
		e.First != d.start || e.Last != d.now || !slices.Equal(e.Sources, []string{"nvml", "kmsg"}) ||
		e.Check != "xid_tenant", "%+v", all)
	// The incident is over, and the next one is new.
	d.to(7*second).kernel(10, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name=x, Ch")
	d.kernel(11, "NVRM: Xid (PCI:0000:9b:00): 31, pid=5, name=x, Ch")
	d.kernel(12, "NVRM: Xid (PCI:0000:00:06): 13, pid=5, name=x, Ch")
	all = d.incidents()
	fixture.If(t, len(all) != 4 || all[2].Entity != gpu1 || all[0].Count != 2, "%+v", all)
}

func TestLateDriverEvent(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 119, pid=5, name=x, Timeout")
	d.to(50*second).nvml(0, "xid", 119) // it was stuck
	d.to(60*second).nvml(0, "xid", 119) // the kernel did not log this one
	d.to(200 * second)
	all := d.incidents()
	fixture.If(t, len(all) != 2 || !slices.Equal(all[0].Sources, []string{"kmsg", "nvml"}) ||
		all[0].Count != 2 || all[1].Count != 1, "%+v", all)
}

func TestOwnerOfAProcess(t *testing.T) {
	d := newDesk(t)
	d.stays = []collectors.Stay{{Process: process(5, "python3", "")}}
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name=pytho, Ch")
	e := d.incidents()[0]
	fixture.If(t, e.PID != 5 || e.Comm != "python3" || e.Workload != "", "%+v", e)
	d.stays[0].Process = process(5, "python3", "pod:a/b/c") // names arrive a little later
	d.to(2 * second)
	e = d.incidents()[0]
	fixture.If(t, e.Workload != "pod:a/b/c" || e.Owner != "namespace:a" || e.Count != 1, "%+v", e)
}

func TestUnknownCodes(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 888, something n\\xc3\\xa9w")
	d.to(time.Minute)
	if e := d.incidents()[0]; e.Class != "" || e.Message != "XID 888, which is not in the table of XIDs: something néw" {
		t.Errorf("%+v", e)
	}
	fixture.Equal(t, d.Losses(), Losses{}, "…, though the driver has no name for it")
}

func TestHostileText(t *testing.T) {
	d := newDesk(t)
	long := strings.Repeat("\u202e\u00e9\x00\n", 500)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name="+long+", "+long)
	d.kernel(2, "Out of memory: Killed process 7 ("+strings.ReplaceAll(long, "\n", "\\x0a")+") total-vm:1kB")
	d.to(10 * second)
	all := d.incidents()
	fixture.If(t, len(all) != 2, "%+v", all)
}

func TestEventsWithoutIncidents(t *testing.T) {
	for _, what := range []string{"pstate", "power_source", "mig_config", "ecc_sbe", "other"} {
		s, ok := ParseEvent(collectors.Event{Type: what})
		fixture.If(t, ok, "%+v", s)
	}
	s, ok := ParseEvent(collectors.Event{GPU: gpu.ID{Index: 3, UUID: "GPU-3"}, Type: "poison_fatal",
		Code: 1 << 60, GI: "2"})
	if !ok || s.Entity != (Entity{GPU: "3", UUID: "GPU-3"}) || s.Code != 0 || s.GI != "2" || s.Source != SourceNVML {
		t.Errorf("%+v, %v", s, ok)
	}
}

func TestConflictingSources(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.nvml(1, "xid", 48)
	d.to(disagreed - second)
	fixture.Equal(t, d.Losses(), Losses{}, "…, before the other source had its time")
	d.to(disagreed)
	fixture.Equal(t, d.Losses(), Losses{MissedByNVML: 1, MissedByKernel: 1}, "…, after it")
	d.to(2 * time.Minute)
	fixture.Equal(t, len(d.open), 2, "… wait for their other source, which may be late")
	d.to(4 * time.Minute)
	fixture.Equal(t, d.Losses(), Losses{MissedByNVML: 1, MissedByKernel: 1}, "… once")
	fixture.Equal(t, len(d.open), 0, "… wait still")
	d = newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.Works = func(string, Entity) bool { return false }
	d.to(time.Minute)
	fixture.Equal(t, d.Losses(), Losses{}, "…, while the other source does not work")
	// An XID of history, or of a source that does not work, is not missed.
	for _, works := range []func(string, Entity) bool{nil,
		func(source string, _ Entity) bool { return source != SourceNVML }} {
		d := newDesk(t)
		if works != nil {
			d.Works = works
		} else {
			d.since = d.start.Add(second)
		}
		d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
		if works != nil {
			d.Works = func(string, Entity) bool { return true } // the driver was reloaded, and its event is lost
		}
		d.to(time.Minute)
		fixture.Equal(t, d.Losses(), Losses{}, "what is not missed")
	}
}

// TestObservationsOutOfOrder has the lines of a fault arrive in another order than that of their times.
func TestObservationsOutOfOrder(t *testing.T) {
	d := newDesk(t)
	at := d.start.Add(time.Minute)
	for i, after := range []time.Duration{0, -4 * second, 3 * second, -8 * second, second} {
		d.hear(d.Add(Observation{Time: at.Add(after), Source: SourceKernel, Entity: gpu0, What: WhatXID, Code: 48,
			Sequence: uint64(i)}, at))
	}
	d.now = at
	d.to(5 * time.Minute)
	all := d.incidents()
	fixture.If(t, len(all) != 1 || all[0].Count != 5 || !all[0].First.Equal(at.Add(-8*second)) ||
		!all[0].Last.Equal(at.Add(3*second)), "%+v", all)
}

func TestFloodIsOneIncident(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const n = 100_000
	for i := range uint64(n) {
		d.kernel(i, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name=x, Ch")
		d.now = d.now.Add(time.Millisecond)
	}
	d.to(n*time.Millisecond + 3*time.Minute)
	if all := d.incidents(); len(all) != 1 || all[0].Count != n || d.tellings > 20 {
		t.Errorf("%d incidents, %d tellings, %+v", len(all), d.tellings, all[0])
	}
}

func TestLongHistoryIsNotALoss(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for i := range uint64(2 * mostOpen) {
		d.hear(d.Add(Observation{Time: d.start.Add(time.Duration(i)*time.Minute - 100*time.Hour), Source: SourceKernel,
			Entity: gpu0, What: WhatXID, Code: 48, Sequence: i}, d.now))
	}
	d.to(5 * time.Minute)
	if len(d.ids) != 2*mostOpen || d.Losses() != (Losses{}) || len(d.open) != 0 {
		t.Errorf("%d incidents, %+v, %d open", len(d.ids), d.Losses(), len(d.open))
	}
}

func TestClockSetBack(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.now = d.start.Add(-time.Hour)
	d.kernel(2, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.start = d.now
	d.to(10 * time.Minute)
	all := d.incidents()
	fixture.If(t, len(all) != 2 || all[1].First != d.start || len(d.open) != 0, "%d open, %+v", len(d.open), all)
	fixture.Equal(t, d.Losses(), Losses{MissedByNVML: 1}, "half a minute by the new clock is long enough: …")
}

func TestUnknownSourcesMissNothing(t *testing.T) {
	start := time.Unix(1e9, 0)
	c := NewCorrelator(CorrelatorOptions{}, start)
	for i := range 3 {
		c.Add(Observation{Time: start, Source: SourceNVML, What: WhatXID, Code: 79 + i, Entity: gpu0}, start)
	}
	for passed := time.Duration(0); passed < 5*time.Minute; passed += time.Second {
		c.Tick(start.Add(passed))
	}
	l := c.Losses()
	fixture.If(t, l != (Losses{}) || len(c.open) != 0, "%+v, %d open", l, len(c.open))
}

func TestRestartNeitherRepeatsNorMisses(t *testing.T) {
	var ring []host.Record
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	log := func(seconds int) {
		ring = append(ring, host.Record{Priority: 4, Sequence: uint64(len(ring)),
			Time: at.Add(time.Duration(seconds) * second), Text: "NVRM: Xid (PCI:0000:00:06): 48, x"})
	}
	c := Cursor{}
	read := func(boot string) (ids []string) {
		text := fixture.Value(json.Marshal(c))(t)
		c = Cursor{}
		fixture.Must(t, json.Unmarshal(text, &c))
		now := at.Add(time.Hour)
		book := NewCorrelator(CorrelatorOptions{Boot: boot}, now)
		for _, r := range ring {
			if s, ok := ParseLine(r, nil); ok && c.Pass(boot, r) {
				for _, e := range book.Add(s, now) {
					if e.Count == 1 {
						ids = append(ids, e.ID)
					}
					fixture.Equal(t, e.First.After(at.Add(time.Minute)), false, "%+v is not of its time", e)
				}
				if left := len(book.Tick(now)); left > 0 { // the incident stays whole
					t.Errorf("%d told again", left)
				}
			}
		}
		return ids
	}
	log(0)
	log(1)
	log(20)
	fixture.EqualSlices(t, read("boot-one"), []string{"boot-one-0", "boot-one-2"}, "at the first start")
	log(40)
	fixture.EqualSlices(t, read("boot-one"), []string{"boot-one-3"}, "the lines logged while the agent was down gave")
	fixture.EqualSlices(t, read("boot-one"), nil, "again")
	ring = ring[:0]
	log(50)
	fixture.EqualSlices(t, read("boot-two"), []string{"boot-two-0"}, "after a reboot")
}

// TestSightingsOfOneFaultAreCloseInTime checks how far apart two signs of a
// fault may be: five seconds, or two minutes if their sources differ.
func TestSightingsOfOneFaultAreCloseInTime(t *testing.T) {
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

// TestFirstReportPrevails adds later signs of a fault that contradict earlier ones, and signs that are new.
func TestFirstReportPrevails(t *testing.T) {
	d := newDesk(t)
	at := func(code int, what string) Observation {
		return Observation{Time: d.now, Source: SourceNVML, Entity: gpu0, What: what, Code: code}
	}
	tell := func(s Observation) []Event { return d.Add(s, d.now) }
	tell(at(0, "soft_lockup"))
	tell(at(0, "soft_lockup"))
	s := at(0, "soft_lockup")
	s.PID, s.Comm, s.GI, s.Text = 77, "python3\n", "3", "it hangs"
	told := tell(s)
	fixture.If(t, len(told) != 1 || told[0].PID != 77 || told[0].Comm != "python3" || told[0].GI != "3" ||
		!strings.Contains(told[0].Message, "it hangs"), "the third says who, where and what: %+v", told)
	s.PID, s.Comm, s.GI, s.Text = 78, "other", "4", "it does not"
	for range 2 {
		fixture.Equal(t, len(tell(s)), 0, "what says otherwise is told")
	}
	d.to(time.Minute)
	e := d.incidents()[0]
	fixture.If(t, e.Count != 5 || e.PID != 77 || e.Comm != "python3" || e.GI != "3" ||
		!strings.Contains(e.Message, "it hangs"), "in the end: %+v", e)
}

// TestRepetitionIsReportedWhenItDoubles counts the reports of repeated sightings of a fault: at one, two, four and so
// on, and of the rest at the end.
func TestRepetitionIsReportedWhenItDoubles(t *testing.T) {
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
	d := newDesk(t)
	for code := range uint64(3) {
		d.nvml(0, "xid", 61+code)
		d.nvml(1, "xid", 61+code)
	}
	d.kernel(7, "NVRM: Xid (PCI:0000:00:06): 79, x")
	ids := slices.Compact(slices.Sorted(slices.Values(d.ids)))
	fixture.If(t, len(ids) != 7 || !slices.Contains(ids, "01234567-7"), "%q", ids)
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
		fixture.If(t, slices.ContainsFunc(d.open, func(i *openIncident) bool { return i.What == "fault 0" }),
			"after %v the oldest is still open", after)
	}
}

// TestInvalidSeverityInATable holds that readers of a table of facts report an invalid severity.
func TestInvalidSeverityInATable(t *testing.T) {
	row := map[string]string{"severity": "awful"}
	_, _, err := verdictOf(row)
	fixture.If(t, err == nil, "a verdict")
	fixture.If(t, fixture.Error(readHappening(row)) == nil, "a happening")
	fixture.If(t, fixture.Error(xidSeverity("awful")) == nil, "an XID")
}

func TestUnknownSXidSaysSo(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 99999, x")
	fixture.Contains(t, d.incidents()[0].Message, "SXid 99999, which is not in the table", "the message")
}
