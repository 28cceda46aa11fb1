package incident

import (
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
	if e.Message == "" || e.ID == "" || e.Version != EventVersion || e.Kind != KindIncident || e.Severity == None ||
		e.Count < 1 || len(e.Sources) == 0 || e.Last.Before(e.First) {
		t.Errorf("%+v is incomplete", e)
	}
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

// TestRecordedKernelLog reads the log of an H100's kernel from the failure of three
// programs, with the driver's events.
func TestRecordedKernelLog(t *testing.T) {
	t.Parallel()
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
		if !ok {
			t.Fatalf("%+v is of no interest", r)
		}
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
		if e.Code != want.code || e.PID != want.pid || e.Count != want.count || e.ID != want.id ||
			e.Comm != "python3" || e.Workload != fmt.Sprintf("slurm:%d", want.pid) ||
			!slices.Equal(e.Sources, []string{"kmsg", "nvml"}) || e.Entity != gpu0 || e.Check != "xid_tenant" ||
			e.Class != ApplicationFault || e.Node != "n1" || e.Boot == "" {
			t.Errorf("incident %d is %+v, want %+v", i, e, want)
		}
	}
	fixture.Equal(t, d.Losses(), Losses{}, "losses")
	if m := all[0].Message; !strings.HasPrefix(m,
		"XID 31, GPU memory page fault (ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT): channel 0x0000000a") {
		t.Errorf("message %q", m)
	}
}

func TestIncidentIsReportedAtOnceAndUpdated(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.stays = []collectors.Stay{{Process: process(5, "evil\xff\x1b[0m", "")}}
	d.nvml(0, "xid", 31)
	if all := d.incidents(); len(all) != 1 || all[0].Count != 1 || all[0].PID != 0 || all[0].Check != "" ||
		all[0].Action != "RESTART_APP" || all[0].Severity != Warning {
		t.Fatalf("%+v", all)
	}
	d.to(second).kernel(9, "NVRM: Xid (PCI:0000:00:06 GPU-I:02): 31, pid=5, name=evil\xff\x1b[0m, Ch")
	all := d.incidents()
	if e := all[0]; len(all) != 1 || e.PID != 5 || e.GI != "2" || e.Comm != "evil? [0m" || e.Count != 2 ||
		e.First != d.start || e.Last != d.now || !slices.Equal(e.Sources, []string{"nvml", "kmsg"}) ||
		e.Check != "xid_tenant" {
		t.Errorf("%+v", all)
	}
	// The incident is over, and the next one is new.
	d.to(7*second).kernel(10, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name=x, Ch")
	d.kernel(11, "NVRM: Xid (PCI:0000:9b:00): 31, pid=5, name=x, Ch")
	d.kernel(12, "NVRM: Xid (PCI:0000:00:06): 13, pid=5, name=x, Ch")
	if all = d.incidents(); len(all) != 4 || all[2].Entity != gpu1 || all[0].Count != 2 {
		t.Errorf("%+v", all)
	}
}

func TestLateDriverEvent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 119, pid=5, name=x, Timeout")
	d.to(50*second).nvml(0, "xid", 119) // it was stuck
	d.to(60*second).nvml(0, "xid", 119) // the kernel did not log this one
	d.to(200 * second)
	if all := d.incidents(); len(all) != 2 || !slices.Equal(all[0].Sources, []string{"kmsg", "nvml"}) ||
		all[0].Count != 2 || all[1].Count != 1 {
		t.Errorf("%+v", all)
	}
}

func TestOwnerOfAProcess(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.stays = []collectors.Stay{{Process: process(5, "python3", "")}}
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name=pytho, Ch")
	if e := d.incidents()[0]; e.PID != 5 || e.Comm != "python3" || e.Workload != "" {
		t.Errorf("%+v", e)
	}
	d.stays[0].Process = process(5, "python3", "pod:a/b/c") // names arrive a little later
	d.to(2 * second)
	if e := d.incidents()[0]; e.Workload != "pod:a/b/c" || e.Owner != "namespace:a" || e.Count != 1 {
		t.Errorf("%+v", e)
	}
}

func TestUnknownCodes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 888, something new")
	d.to(time.Minute)
	if e := d.incidents()[0]; e.Class != "" || e.Message != "XID 888, which is not in the table of XIDs: something new" {
		t.Errorf("%+v", e)
	}
	fixture.Equal(t, d.Losses(), Losses{}, "…, though the driver has no name for it")
}

func TestHostileText(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	long := strings.Repeat("\u202e\u00e9\x00\n", 500)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name="+long+", "+long)
	d.kernel(2, "Out of memory: Killed process 7 ("+strings.ReplaceAll(long, "\n", "\\x0a")+") total-vm:1kB")
	d.to(10 * second)
	if all := d.incidents(); len(all) != 2 {
		t.Errorf("%+v", all)
	}
}

func TestEventsWithoutIncidents(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"pstate", "power_source", "mig_config", "ecc_sbe", "other"} {
		if s, ok := ParseEvent(collectors.Event{Type: what}); ok {
			t.Errorf("%+v", s)
		}
	}
	s, ok := ParseEvent(collectors.Event{GPU: gpu.ID{Index: 3, UUID: "GPU-3"}, Type: "poison_fatal",
		Code: 1 << 60, GI: "2"})
	if !ok || s.Entity != (Entity{GPU: "3", UUID: "GPU-3"}) || s.Code != 0 || s.GI != "2" || s.Source != SourceNVML {
		t.Errorf("%+v, %v", s, ok)
	}
}
