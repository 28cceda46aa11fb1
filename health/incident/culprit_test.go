package incident

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

// agentPID is the agent's own PID in these tests.
const agentPID = 631

// line returns the driver's line of an XID 13 with a process.
func line(pid int, comm string) string {
	return fmt.Sprintf("NVRM: Xid (PCI:0000:00:06): 13, pid=%d, name=%s, Graphics Exception: channel 0x0000000a", pid,
		comm)
}

// TestProcessIsNamedOnlyIfOnTheGPU checks which process is named, given lines at a time t and the processes present.
func TestProcessIsNamedOnlyIfOnTheGPU(t *testing.T) {
	type stay struct {
		pid          int
		began        time.Duration // start of the process, before the line
		after, until time.Duration // end of its absence from the GPU, and its last sighting; before the line, 0: none
	}
	for name, c := range map[string]struct {
		stays   []stay
		lines   []int // PIDs; negative: in a line that names no channel
		now     map[int]uint64
		foreign bool
		want    int
		present []int // on the GPU, if no process is believed
	}{
		"one of several": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, 0},
			{7, time.Hour, time.Minute, 0}}, lines: []int{7}, want: 7},
		"ended a second before": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, second}},
			lines: []int{6}, want: 6},
		"ended long before": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, lingers + second}},
			lines: []int{6}, present: []int{5}},
		"ended after":             {stays: []stay{{5, time.Hour, time.Minute, -second / 10}}, lines: []int{5}, want: 5},
		"listed after, and begun": {stays: []stay{{5, second, second / 10, 0}}, lines: []int{5}, want: 5},
		"came after":              {stays: []stay{{5, second, -second / 10, 0}}, lines: []int{5}},
		"the agent": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, 0}}, lines: []int{agentPID},
			present: []int{5, 6}},
		"the agent has a context": {stays: []stay{{agentPID, time.Hour, 0, 0}, {6, time.Hour, 0, 0}},
			lines: []int{agentPID}, present: []int{6}},
		"the agent, then another": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, 0}},
			lines: []int{agentPID, 8, 6}, want: 6},
		"of two the first": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, 0}},
			lines: []int{5, 6}, want: 5},
		"one in the driver, then the channel's owner": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, 0}},
			lines: []int{-5, -5, 6}, want: 6},
		"the channel's owner was in the driver, too": {stays: []stay{{5, time.Hour, 0, 0}, {6, time.Hour, 0, 0}},
			lines: []int{-5, -6, 6}, want: 6},
		"many in the driver, then the owner": {stays: []stay{{5, time.Hour, 0, 0}, {60, time.Hour, 0, 0}},
			lines: []int{-5, -10, -11, -12, -13, -14, -15, -16, -17, -18, -19, -20, 60}, want: 60},
		"one in the driver, then an owner who was never listed": {stays: []stay{{5, time.Hour, 0, 0}}, lines: []int{-5, 8},
			present: []int{5}},
		"one in the driver, and no owner": {stays: []stay{{5, time.Hour, 0, 0}}, lines: []int{-5}, want: 5},
		"a bystander":                     {stays: []stay{{5, time.Hour, 0, 0}}, lines: []int{8}, present: []int{5}},
		"nobody is there":                 {lines: []int{8}},
		"another has the PID now": {stays: []stay{{5, time.Hour, 0, second}}, lines: []int{5},
			now: map[int]uint64{5: 99}, present: []int{5}},
		"the same has the PID": {stays: []stay{{5, time.Hour, 0, second}}, lines: []int{5},
			now: map[int]uint64{5: 5}, want: 5},
		"both had the PID": {stays: []stay{{5, time.Hour, 0, time.Minute}, {5, 2 * second, second, 0}},
			lines: []int{5}, want: 5},
		"PIDs of another space": {stays: []stay{{5, time.Hour, 0, 0}}, lines: []int{5}, foreign: true,
			present: []int{5}},
		"before the first look": {stays: []stay{{5, time.Hour, 0, 0}}, lines: []int{5}, want: 5},
		"begun after the line":  {stays: []stay{{5, -time.Minute, 0, 0}}, lines: []int{5}},
		"no process is named":   {stays: []stay{{5, time.Hour, 0, 0}}, lines: []int{0}, present: []int{5}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.Self, d.Foreign = agentPID, c.foreign
			d.Process = func(pid int, _ time.Time) (host.Process, bool) {
				start, known := c.now[pid]
				return host.Process{PID: pid, Comm: "other", Start: start}, known
			}
			d.to(10 * second)
			before := func(ago time.Duration) time.Time {
				if ago == 0 {
					return time.Time{}
				}
				return d.now.Add(-ago)
			}
			for _, s := range c.stays {
				p := process(s.pid, fmt.Sprint("job-", s.pid), fmt.Sprint("slurm:", s.pid))
				p.Began = d.now.Add(-s.began)
				d.stays = append(d.stays, collectors.Stay{Process: p, After: before(s.after), Until: before(s.until)})
			}
			for i, pid := range c.lines {
				text := line(pid, "gpusteward")
				if pid == 0 {
					text = "NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x519730=0xf"
				}
				if pid < 0 {
					text = strings.Replace(line(-pid, "gpusteward"), "channel 0x0000000a", "ESR 0x519730=0xf", 1)
				}
				d.kernel(uint64(i+1), text)
				d.to(10*second + time.Duration(i)*time.Millisecond)
			}
			d.to(20 * second)
			e := d.incidents()[0]
			var present []int
			for _, h := range e.Present {
				present = append(present, h.PID)
			}
			fixture.If(t, e.PID != c.want || !slices.Equal(present, c.present),
				"the process is %d, and there were %v; want %d, %v", e.PID, present, c.want, c.present)
			unknown := ", by an unknown process"
			for i, pid := range c.present {
				unknown += []string{"; on the GPU: ", ", "}[min(i, 1)] + fmt.Sprintf("job-%d (pid %[1]d)", pid)
			}
			switch {
			case c.want == 0 && (e.Comm != "" || e.Workload != "" || !strings.HasSuffix(e.Message, unknown)):
				t.Errorf("%+v; want no names, and %q", e, unknown)
			case c.want != 0 && (strings.Contains(e.Message, "unknown") ||
				c.now == nil && (e.Comm != fmt.Sprint("job-", c.want) || e.Workload != fmt.Sprint("slurm:", c.want))):
				t.Errorf("%+v; want it to be of job-%d", e, c.want)
			}
			fixture.Equal(t, strings.Contains(e.Message+e.Comm, "gpusteward"), false, "%+v names the agent:", e)
		})
	}
}

// TestAnOwnerWhoWasNotThereIsNoNews: the one who was on the GPU stays, and is told once.
func TestAnOwnerWhoWasNotThereIsNoNews(t *testing.T) {
	d := newDesk(t)
	d.to(10 * second)
	d.stays = []collectors.Stay{{Process: process(5, "job-5", "slurm:5")}}
	d.kernel(1, strings.Replace(line(5, "x"), "channel 0x0000000a", "ESR 0x519730=0xf", 1))
	d.kernel(2, line(8, "y"))
	for i := range 5 {
		d.to(time.Duration(12+i) * second)
	}
	fixture.Equal(t, d.incidents()[0].PID, 0, "process: it was only in the driver")
	fixture.AtMost(t, d.tellings, 2, "reports of an incident of two lines")
}

// TestEachTenantHasItsOwnFault has programs of two tenants fail on one GPU within 5 s: each is told once with what follows
// its own fault, whichever is listed first, and no event of the driver is missed.
func TestEachTenantHasItsOwnFault(t *testing.T) {
	for late := range 3 { // 0: both are listed from the start
		d := newDesk(t)
		jobs := []collectors.Stay{{Process: process(5, "a", "pod:x/a")}, {Process: process(6, "b", "pod:y/b")},
			{Process: process(7, "b", "pod:y/b")}}
		d.stays = jobs
		if late > 0 {
			d.stays = jobs[2*late-2:][:1]
		}
		says := func(pid int) string { return strings.Replace(line(pid, "x"), "0000a", fmt.Sprintf("0000%d", pid), 1) }
		for n, pid := range []int{5, 6, 5, 7, 6} {
			d.kernel(uint64(n), says(pid))
			d.nvml(0, "xid", 13)
		}
		fixture.If(t, late == 0 && len(d.ids) != 2, "told at once: %q", d.ids)
		d.to(second).stays = jobs
		for n, pid := range []int{6, 5} {
			d.to(2*second).kernel(uint64(9+n), strings.Replace(says(pid), " 13,", " 45,", 1))
			d.nvml(0, "xid", 45)
		}
		d.to(5 * time.Minute)
		var got []string
		for _, e := range d.incidents() {
			follows := ""
			fixture.Equal(t, strings.Contains(e.Message, "00005"), e.Workload == "pod:x/a", "%q has the line of the first", e.Message)
			if e.Follows != "" {
				follows = d.told[e.Follows].Workload
			}
			got = append(got, fmt.Sprint(e.Code, " ", e.Workload, " ", follows))
		}
		slices.Sort(got)
		fixture.EqualSlices(t, got, []string{"13 pod:x/a ", "13 pod:y/b ", "45 pod:x/a pod:x/a", "45 pod:y/b pod:y/b"}, "late %d", late)
		fixture.Equal(t, d.Losses(), Losses{}, "late %d: losses", late)
	}
}

// TestFaultsUnderMPSAreTheClients: the driver names the server.
func TestFaultsUnderMPSAreTheClients(t *testing.T) {
	for want, clients := range map[string][]string{"slurm:1": nil, "slurm:2": {"slurm:2", "slurm:2"}, "": {"slurm:2", "slurm:3"}} {
		d := newDesk(t)
		d.stays = []collectors.Stay{{Process: process(5, "nvidia-cuda-mps", "slurm:1"), Kind: collectors.KindServer}}
		for n, c := range clients {
			d.stays = append(d.stays, collectors.Stay{Process: process(6+n, "python3", c), Kind: collectors.KindClient})
		}
		d.kernel(1, line(5, "nvidia-cuda-mps"))
		e := d.to(10 * second).incidents()[0]
		fixture.If(t, e.Workload != want || want == "" && len(e.Present) != 3, "clients of %q: %+v", clients, e)
	}
}

func TestListedProcessesAreBounded(t *testing.T) {
	d, many := newDesk(t), slices.Repeat([]collectors.Stay{{Process: host.Process{PID: 5}}}, mostPresent+1)
	fixture.Equal(t, len(d.present(many, d.now)), mostPresent, "processes that an event lists")
	i := openIncident{Event: Event{What: WhatXID, Code: 48}}
	i.meet([]Holder{{PID: 5}})
	fixture.Equal(t, len(i.Present), 0, "processes on the GPU at an XID that no process causes")
}

// TestProcessIsNamedOnceListed has a fault before the driver's first list of processes.
func TestProcessIsNamedOnceListed(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, line(5, "python3"))
	e := d.incidents()[0]
	fixture.If(t, e.PID != 0 || e.Comm != "" || e.Check != "xid_tenant", "%+v", e)
	d.stays = []collectors.Stay{{Process: process(5, "python3", "slurm:5")}}
	d.to(second)
	if e := d.incidents()[0]; e.PID != 5 || e.Workload != "slurm:5" || e.Count != 1 ||
		strings.Contains(e.Message, "unknown") {
		t.Errorf("%+v", e)
	}
}

// TestProcessOfUnknownAgeIsNamed has a process on the GPU with an unknown
// start. A reuse of its PID cannot be noticed then.
func TestProcessOfUnknownAgeIsNamed(t *testing.T) {
	for start, want := range map[uint64]int{0: 5, 1: 0, 99: 5} {
		d := newDesk(t)
		p := process(5, "job", "slurm:5")
		p.Start = start
		d.stays = []collectors.Stay{{Process: p}}
		d.Process = func(pid int, _ time.Time) (host.Process, bool) {
			return host.Process{PID: pid, Comm: "job", Start: 99, Workload: p.Workload}, true
		}
		d.kernel(1, line(5, "job"))
		fixture.Equal(t, d.incidents()[0].PID, want, "a process with start %d, and one with 99 now: PID", start)
	}
}

// TestProcessWithoutWorkloadIsReportedOnce holds that a second look with the same
// result is no news, and that another name of the process is.
func TestProcessWithoutWorkloadIsReportedOnce(t *testing.T) {
	for comm, want := range map[string]int{"python3": 1, "": 1, "train": 2} {
		d := newDesk(t)
		known := ""
		d.Process = func(pid int, _ time.Time) (host.Process, bool) { return host.Process{PID: pid, Comm: known}, true }
		d.kernel(1, "Out of memory: Killed process 77 (python3) total-vm:1kB")
		known = comm
		d.to(4 * second)
		if e := d.incidents()[0]; d.tellings != want || e.PID != 77 || e.Comm != cmp.Or(comm, "python3") {
			t.Errorf("called %q later: %s, told %d times, want %d", comm, e.Comm, d.tellings, want)
		}
	}
}

// TestMIGInstanceIsNamed has an XID of an instance on a GPU with several owners.
func TestMIGInstanceIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		" GPU-I:03): 94, Contained: CE User Channel": ", MIG instance 3; on the GPU: job (pid 5) of pod:a/b",
		" GPU-I:03): 94, pid=5, name=job, Contained": ", MIG instance 3, of pod:a/b",
		" GPU-I:03): 31, pid=6, name=a, Ch 0000000a": ", MIG instance 3, by an unknown process; on the GPU: job (pid 5) of pod:a/b",
		"): 119, pid=6, name=nvidia-smi, Timeout":    " (GSP_RPC_TIMEOUT)", // no process did it
	} {
		d := newDesk(t)
		d.stays = []collectors.Stay{{Process: process(5, "job", "pod:a/b")}}
		d.kernel(1, "NVRM: Xid (PCI:0000:00:06"+text)
		m := d.to(10 * second).incidents()[0].Message
		fixture.If(t, !strings.HasSuffix(m, want), "%q, want it to end in %q", m, want)
	}
}

// TestMessagesOfTheKernelRemain has a line about a process that need not be on a GPU.
func TestMessagesOfTheKernelRemain(t *testing.T) {
	d := newDesk(t)
	d.kernel(1, "Out of memory: Killed process 77 (python3) total-vm:1kB")
	all := d.incidents()
	fixture.If(t, len(all) != 1 || all[0].PID != 77 || all[0].Comm != "python3", "%+v", all)
}

// A guest is a program with a context on a GPU for a time.
type guest struct {
	process  host.Process
	gpu      Entity
	from, to time.Duration // of its context; to is 0 while it continues
}

// listed returns the knowledge of an agent that asks the driver at an interval.
func listed(guests []guest, gpu string, every, now time.Duration, start time.Time) (all []collectors.Stay) {
	at := start.Add
	for _, j := range guests {
		seen := (j.from + every - 1) / every * every // the first request that saw it
		if j.gpu.UUID != gpu || seen > now || j.to != 0 && seen >= j.to {
			continue
		}
		s := collectors.Stay{Process: j.process}
		if seen > 0 {
			s.After = at(seen - every)
		}
		if left := (j.to + every - 1) / every * every; j.to != 0 && left <= now {
			s.Until = at(left)
		}
		all = append(all, s)
	}
	return all
}

// TestTwoHundredFaults generates faults of programs that share GPUs. The lines name the faulty process, the agent,
// bystanders, or a process with a reused PID. No name may be wrong at any interval of the agent. With ten requests per
// second, 95 % are right.
func TestTwoHundredFaults(t *testing.T) {
	t.Parallel()
	const faults = 200
	for _, every := range []time.Duration{second / 10, second} {
		r := rand.New(rand.NewPCG(17, uint64(every)))
		between := func(a, b time.Duration) time.Duration { return a + time.Duration(r.Int64N(int64(b-a))) }
		right, unknown, wrong := 0, 0, 0
		for n := range faults {
			d := newDesk(t)
			d.Self = agentPID
			var guests []guest
			add := func(pid int, gpu Entity, from, to time.Duration) guest {
				p := process(pid, fmt.Sprintf("job-%d", pid), fmt.Sprintf("slurm:%d", pid))
				p.Start, p.Began = uint64(1000*n+len(guests)+1), d.start.Add(from-between(0, second/2))
				guests = append(guests, guest{p, gpu, from, to})
				return guests[len(guests)-1]
			}
			for i := range 3 + r.IntN(3) {
				add(100+i, gpu0, 0, 0)
				add(200+i, gpu1, 0, 0)
			}
			fault := between(6*second, 12*second)
			culprit := &guests[2*r.IntN(3)]
			if r.IntN(3) > 0 { // a process that has run for a moment
				add(300+n, gpu0, fault-between(second/4, 3*second), 0)
				culprit = &guests[len(guests)-1]
			}
			culprit.to = fault + between(5*second/1000, second/5)
			said := fault
			if r.IntN(10) == 0 { // the driver reports it late
				said += second
			}
			by := *culprit
			d.Process = func(pid int, at time.Time) (host.Process, bool) {
				i := slices.IndexFunc(guests, func(j guest) bool {
					return j.process.PID == pid &&
						!j.process.Began.After(at.Add(exact))
				})
				if i < 0 {
					return host.Process{}, false
				}
				return guests[i].process, true
			}
			pids := []int{by.process.PID}
			switch k := r.IntN(40); {
			case k < 12: // a second line has the right process
				pids = []int{agentPID, by.process.PID}
			case k < 14:
				pids = []int{200, by.process.PID} // a process on the other GPU
			case k < 16:
				pids = []int{999, by.process.PID} // nvidia-smi
			case k == 16:
				pids = []int{agentPID}
			}
			for tick := time.Duration(0); tick <= said+8*second; tick += second / 10 {
				d.Stays = func(uuid string) []collectors.Stay { return listed(guests, uuid, every, tick, d.start) }
				if tick >= said && len(pids) > 0 {
					for i, pid := range pids {
						s, ok := ParseLine(host.Record{Sequence: uint64(i + 1), Time: d.start.Add(said),
							Text: line(pid, "gpusteward")}, nil)
						fixture.Stop(t, !ok, "no fault")
						d.hear(d.Add(s, d.start.Add(tick)))
					}
					pids = nil
				}
				d.hear(d.Tick(d.start.Add(tick)))
			}
			switch e := d.incidents()[0]; {
			case e.PID == 0 && e.Comm == "" && e.Workload == "":
				unknown++
			case e.PID == by.process.PID && e.Comm == by.process.Comm && e.Workload == by.process.Workload.Key:
				right++
			default:
				wrong++
				t.Errorf("asked every %v, fault %d: of %s (pid %d), told as %+v", every, n, by.process.Comm,
					by.process.PID, e)
			}
		}
		t.Logf("asked every %v: of %d faults %d right, %d unknown, %d wrong", every, faults, right, unknown, wrong)
		fixture.If(t, every == second/10 && right*100 < faults*95,
			"%d of %d names are right, want 95 %%", right, faults)
	}
}
