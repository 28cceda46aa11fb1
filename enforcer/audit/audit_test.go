package audit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

const (
	gib   = 1 << 30
	gpuA  = "GPU-a"
	gpuB  = "GPU-b"
	probe = 5 * time.Second // interval at which the driver is asked for samples
)

// A world is a host with tenants and their workloads on GPUs, as the driver and
// the broker describe them. Its clock advances by one second at a time.
type world struct {
	now       time.Time
	start     time.Time
	processes []*guest
	tenants   map[string]*wire.TenantStats // by tenant and GPU
	together  map[string]float64
	quotas    map[string]policy.Quota
	silent    map[string]bool
	sampled   time.Time
	lag       time.Duration   // from the driver's newest sample to the books
	holds     map[int]Hold    // by PID
	moving    map[string]bool // GPUs
	blind     bool            // the driver samples nothing
	young     bool            // the driver is asked for samples each second
	deaf      bool            // the driver was not asked this second
	audit     Audit
}

// A guest is a process on a GPU.
type guest struct {
	collectors.DeviceProcess
	tenant    string // by policy; empty: default
	session   bool
	aside     bool          // its session does not use the GPU
	slice     time.Duration // that it gave itself
	committed uint64
	rate      float64 // part of the GPU's time that it uses
	charged   float64 // part of the GPU's time that it is charged for
	bus       float64 // part of the memory's bandwidth
	sm, busy  float64 // totals so far; the device process has the sampled ones
}

func newWorld() *world {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &world{now: start, start: start, tenants: map[string]*wire.TenantStats{},
		together: map[string]float64{gpuA: 0},
		quotas:   map[string]policy.Quota{}, silent: map[string]bool{}}
}

// process adds a process of a workload; its PID is its number.
func (w *world) process(tenant, workload, gpu string) *guest {
	a := &guest{tenant: tenant, session: true}
	a.UUID, a.Kind, a.Known = gpu, "compute", true
	a.Process = host.Process{PID: 1000 + len(w.processes), Start: uint64(w.now.Sub(w.start)/time.Millisecond) + 1,
		Began: w.now, Workload: &host.Workload{Key: workload}}
	w.processes = append(w.processes, a)
	return a
}

// limited returns a world with a process of a tenant that has a limit. The process is charged for what it uses.
func limited(limit, rate float64) (*world, *guest) {
	w := newWorld()
	w.quotas["a"] = policy.Quota{Limit: limit}
	a := w.process("a", "pod:x", gpuA)
	a.rate, a.charged = rate, rate
	return w, a
}

func (w *world) end(a *guest) {
	w.processes = slices.DeleteFunc(w.processes, func(o *guest) bool { return o == a })
}

// step advances the world by one second and audits it.
func (w *world) step() Audited {
	w.pass(time.Second)
	return w.audit.Look(w.books())
}

// pass advances the world without an audit.
func (w *world) pass(d time.Duration) {
	before := w.now
	w.now = w.now.Add(d)
	to := w.now.Add(-w.lag)
	ask := !w.blind && (w.young || to.Sub(w.sampled) >= probe)
	for _, a := range w.processes {
		if w.sampled.IsZero() {
			a.SM, a.Busy = 0, 0
		}
		if ask {
			lead := max(to.Sub(before).Seconds(), 0)
			a.SM, a.Busy, a.Sampled = a.sm+a.rate*lead, a.busy+a.bus*lead, to
		}
		a.sm += a.rate * d.Seconds()
		a.busy += a.bus * d.Seconds()
		if !w.deaf {
			a.At = w.now
		}
		if a.session && !a.aside {
			t := w.tenant(a.tenant, a.UUID)
			t.ChargedSeconds += a.charged * d.Seconds()
		}
	}
	if ask {
		w.sampled = to
	}
}

func (w *world) tenant(name, gpu string) *wire.TenantStats {
	t := w.tenants[name+gpu]
	if t == nil {
		t = &wire.TenantStats{Tenant: name, GPU: gpu, Sessions: 1}
		w.tenants[name+gpu] = t
	}
	return t
}

func (w *world) books() Books {
	b := Books{Now: w.now, Silent: w.silent,
		Quota: func(tenant, _ string) policy.Quota { return w.quotas[tenant] },
		Holds: Holds{Process: func(pid int, _ string) Hold { return w.holds[pid] }}, Moving: w.moving,
		Tenant: func(h collectors.DeviceProcess) (string, bool) {
			for _, a := range w.processes {
				if a.Process == h.Process {
					return a.tenant, a.tenant != ""
				}
			}
			return "", false
		}}
	for name := range w.quotas {
		b.Names = append(b.Names, name)
	}
	slices.Sort(b.Names)
	for _, a := range w.processes {
		b.DeviceProcesses = append(b.DeviceProcesses, a.DeviceProcess)
		if a.session {
			s := Session{PID: a.Process.PID, Start: a.Process.Start, Tenant: a.tenant,
				GPUs: []SessionGPU{{a.UUID, a.committed, a.slice}}}
			if a.aside {
				s.GPUs = nil
			}
			b.Sessions = append(b.Sessions, s)
		}
	}
	for _, t := range w.tenants {
		b.Tenants = append(b.Tenants, *t)
	}
	for gpu, s := range w.together {
		b.GPUs = append(b.GPUs, wire.GPUStats{GPU: gpu, TogetherSeconds: s})
	}
	return b
}

// found formats the findings without their texts.
func (f Audited) found() string {
	var all []string
	for _, v := range f.Violations {
		all = append(all, fmt.Sprintf("%s/%s/%s/%s%v", v.Tenant, v.Workload, v.GPU, v.Objective, v.PIDs))
	}
	return strings.Join(all, " ")
}

// accuses returns the number of findings, which are all to be what is wanted, about a process.
func (f Audited) accuses(t *testing.T, name, want string, a *guest) int {
	t.Helper()
	for _, v := range f.Violations {
		fixture.If(t, fmt.Sprintf("%s/%s/%s/%s", v.Tenant, v.Workload, v.GPU, v.Objective) != want ||
			!slices.Contains(v.PIDs, a.Process.PID), "%s: found %+v", name, v)
	}
	return len(f.Violations)
}

// run audits for some seconds and returns all findings, each once, in order.
func (w *world) run(seconds int) string {
	var all []string
	for range seconds {
		if f := w.step().found(); f != "" {
			all = append(all, strings.Fields(f)...)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

func near(x, y float64) bool { return math.Abs(x-y) < 1e-6 }

func TestAuditFindsProcessesWithoutASession(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *world, a *guest)
		want   string
	}{
		{"with a session", func(*world, *guest) {}, ""},
		{"without", func(_ *world, a *guest) { a.session = false }, "a/pod:x/GPU-a/unhooked[1000]"},
		{"not governed", func(_ *world, a *guest) { a.session, a.tenant = false, "" }, ""},
		{"the MPS server", func(_ *world, a *guest) { a.session, a.Kind = false, "server" }, ""},
		{"unknown to the kernel", func(_ *world, a *guest) { a.session, a.Unknown = false, true }, ""},
		{"no name yet", func(_ *world, a *guest) { a.session, a.Process.Workload = false, nil }, ""},
	} {
		w := newWorld()
		w.step() // the audit began before the process
		w.pass(time.Second)
		c.change(w, w.process("a", "pod:x", gpuA))
		if got := w.step(); len(got.Violations) != 0 {
			t.Errorf("%s: a process that may have ended already is accused: %s", c.name, got.found())
		} else if n := slices.ContainsFunc(got.Workloads,
			func(s wire.WorkloadStats) bool { return s.Unhooked == 1 }); n != (c.want != "") {
			t.Errorf("%s: it is counted at once: %v", c.name, n)
		}
		fixture.Equal(t, w.step().found(), c.want, "%s: found", c.name)
	}
}

// TestAuditFindsLongerTimeSlices accuses a process that gave itself a time slice, if others are on its GPU.
func TestAuditFindsLongerTimeSlices(t *testing.T) {
	for _, c := range []struct{ tenant, gpu, want string }{
		{"b", gpuA, "a/pod:x/GPU-a/slices[1001]"}, {"", gpuA, "a/pod:x/GPU-a/slices[1001]"}, // others have no tenant
		{"a", gpuA, ""}, {"b", gpuB, ""},
	} {
		w := newWorld()
		w.process(c.tenant, "pod:y", c.gpu)
		a := w.process("a", "pod:x", gpuA)
		fixture.Equal(t, w.run(3), "", "beside %q before", c.tenant)
		a.slice = 20 * time.Millisecond
		fixture.Equal(t, w.run(1), c.want, "beside %q on %s", c.tenant, c.gpu)
		a.slice = 0
		fixture.Equal(t, w.run(3), "", "beside %q after", c.tenant)
	}
}

func TestAuditKnowsAProcessByItsStart(t *testing.T) {
	w := newWorld()
	a := w.process("a", "pod:x", gpuA)
	w.run(3)
	for i := range 12 {
		w.pass(time.Second)
		b := w.books()
		b.Sessions[0].Start = a.Process.Start + 1 // the session belonged to the process that had the PID before
		if got := w.audit.Look(b); (got.found() != "") != (i >= 10) {
			t.Fatalf("%d s with another process's session: %q", i, got.found())
		}
	}

	w = newWorld()
	a = w.process("a", "pod:x", gpuA)
	w.run(3)
	w.pass(time.Second)
	a.session, a.Process.Start, a.Process.Began = false, 99999, w.now // the PID is reused by a process without the hook
	w.step()
	fixture.Equal(t, w.step().found(), "a/pod:x/GPU-a/unhooked[1000]", "a process that has the PID of one with a session: found")
}

func TestALostSessionIsLetPassForAWhile(t *testing.T) {
	w := newWorld()
	a := w.process("a", "pod:x", gpuA)
	w.run(20)
	a.session = false
	for i := range 10 {
		if got := w.step(); got.found() != "" || got.Known[Subject{"a", "pod:x"}] {
			t.Fatalf("%d s without a session: %q, known %v", i, got.found(), got.Known)
		}
	}
	fixture.Equal(t, w.step().found(), "a/pod:x/GPU-a/unhooked[1000]", "a process that does not reconnect: found")
	a.session = true
	fixture.Equal(t, w.run(5), "", "connected again")
	a.session = false
	fixture.Equal(t, w.step().found(), "a/pod:x/GPU-a/unhooked[1000]", "a second lapse within a minute: found")

	// While the agent starts, hooks have not found the new broker yet.
	w = newWorld()
	w.process("a", "pod:x", gpuA).session = false
	for i := range 10 {
		fixture.Need(t, w.step().found(), "", "%d s after the start: found", i)
	}
	fixture.Equal(t, w.step().found(), "a/pod:x/GPU-a/unhooked[1000]", "a process that never connects: found")
}

// TestLapsesAddUp lets a process end its session and begin another each second, so that no gap is longer than an audit
// interval. The process is found in each minute. A process that reconnects for the first time is not found.
func TestLapsesAddUp(t *testing.T) {
	w := newWorld()
	w.quotas["a"] = policy.Quota{Limit: 1}
	a, honest := w.process("a", "pod:x", gpuA), w.process("b", "pod:y", gpuA)
	w.run(70)
	for minute := range 3 {
		found := 0
		for i := range 60 {
			a.session, honest.session = i%2 == 0, i > 8
			switch got := w.step().found(); got {
			case "a/pod:x/GPU-a/unhooked[1000]":
				found++
			case "":
			default:
				t.Fatalf("found %q", got)
			}
		}
		fixture.AtLeast(t, found, 10, "minute %d: 30 lapses are found … times", minute)
	}
}

// TestRefusedSessionIsNoBypass has the broker refuse sessions. A new process and one that lost its session are not
// found to lack one, and their tenant is reported. A process that never asked for a session is found.
func TestRefusedSessionIsNoBypass(t *testing.T) {
	w := newWorld()
	w.process("a", "pod:x", gpuA)
	w.run(30)
	lost, fresh, evader := w.processes[0], w.process("a", "pod:x", gpuA), w.process("b", "pod:y", gpuA)
	w.quotas["a"], w.quotas["b"] = policy.Quota{Limit: 1}, policy.Quota{Limit: 1}
	lost.session, fresh.session, evader.session = false, false, false
	w.holds = map[int]Hold{lost.Process.PID: Starved, fresh.Process.PID: Starved}
	fixture.Equal(t, w.run(100), "b/pod:y/GPU-a/unhooked[1002]", "found")
	if got := w.step(); !got.Refused["a"] || got.Refused["b"] || got.Known[Subject{"a", "pod:x"}] {
		t.Errorf("refused are %v, known %v", got.Refused, got.Known)
	}
	w.holds = nil
	fixture.Equal(t, w.run(8), "b/pod:y/GPU-a/unhooked[1002]", "before they can have connected")
	fixture.Equal(t, w.step().Refused["a"], true, "the tenant of processes without a session is excused")
	w.run(60)
	if got := w.step(); len(got.Refused) != 0 ||
		got.found() != "a/pod:x/GPU-a/unhooked[1000 1001] b/pod:y/GPU-a/unhooked[1002]" {
		t.Errorf("found %q", got.found())
	}
	fixture.Equal(t, len(w.step().Refused), 0, "tenants that are excused for ever")
}

// TestOwnSessionLimitIsNoExcuse has the broker refuse a process because of its own workload.
// It has the time of one that connects again, and is then found like one that never asked.
func TestOwnSessionLimitIsNoExcuse(t *testing.T) {
	w := newWorld()
	w.process("a", "pod:x", gpuA)
	w.run(30)
	refused := w.process("a", "pod:x", gpuA)
	w.quotas["a"] = policy.Quota{Limit: 1}
	refused.session, w.holds = false, map[int]Hold{refused.Process.PID: Filled}
	fixture.Equal(t, w.run(8), "", "found before it can have connected again")
	fixture.Equal(t, w.run(20), "a/pod:x/GPU-a/unhooked[1001]", "found")
	fixture.Equal(t, w.step().Refused["a"], false, "its tenant is excused")
}

// TestSuspendedProcessIsNoBypass restarts the broker while processes are suspended. One that had a session is not found
// to lack one, until 10 s after it runs again; one that never had one is found.
func TestSuspendedProcessIsNoBypass(t *testing.T) {
	w := newWorld()
	hooked, evader := w.process("a", "pod:x", gpuA), w.process("b", "pod:y", gpuA)
	w.quotas["a"], w.quotas["b"] = policy.Quota{Limit: 1}, policy.Quota{Limit: 1}
	evader.session = false
	fixture.Equal(t, w.run(30), "b/pod:y/GPU-a/unhooked[1001]", "found")
	hooked.session = false
	w.holds = map[int]Hold{hooked.Process.PID: Suspended, evader.Process.PID: Suspended}
	fixture.Equal(t, w.run(100), "b/pod:y/GPU-a/unhooked[1001]", "found of suspended ones")
	fixture.Equal(t, len(w.step().Refused), 0, "tenants that are excused for what they use")
	w.holds = nil
	fixture.Equal(t, w.run(8), "b/pod:y/GPU-a/unhooked[1001]", "found before it can have connected")
	fixture.Equal(t, w.run(30), "a/pod:x/GPU-a/unhooked[1000] b/pod:y/GPU-a/unhooked[1001]", "found")
}

// TestNoWindowSpansAMove has the driver count too much for a process while the memory of another workload is on its
// way, and wants nobody accused; and whoever goes on is, after that.
func TestNoWindowSpansAMove(t *testing.T) {
	w, p := limited(1, .03)
	w.tenant("a", gpuA)
	fixture.Need(t, w.run(30), "", "found")
	w.moving, p.rate = map[string]bool{gpuA: true}, .17
	fixture.Equal(t, w.run(15), "", "found while memory is on its way")
	fixture.Equal(t, w.step().Known[Subject{"a", "pod:x"}], false, "nothing is known, and it is taken to be honest")
	w.moving, p.rate = nil, .03
	fixture.Equal(t, w.run(60), "", "found after that")
	p.rate = .17
	fixture.Equal(t, w.run(30), "a/pod:x/GPU-a/reports[1000]", "found")
}

// TestManySessionsOfAProcess adds up all sessions of a process in linear time.
func TestManySessionsOfAProcess(t *testing.T) {
	b := Books{Sessions: []Session{{PID: 1, Tenant: "a", GPUs: []SessionGPU{{gpuA, 1, 0}}},
		{PID: 2, GPUs: []SessionGPU{{gpuA, 7, 0}}}}}
	for range 100_000 {
		b.Sessions = append(b.Sessions, Session{PID: 1, Tenant: "a", Stale: true,
			GPUs: []SessionGPU{{gpuA, 1, 0}, {gpuB, 1, 0}}})
	}
	for range 2 { // the books stay as they were
		index := map[int]Session{}
		b.sessions(index) // if each step copied the previous sessions, that would be half a terabyte
		one, two := index[1], index[2]
		onA, _ := one.on(gpuA)
		onB, _ := one.on(gpuB)
		if other, _ := two.on(gpuA); onA != 100_001 || onB != 100_000 || other != 7 || one.Stale {
			t.Fatalf("%d and %d bytes, %d of another, stale %v", onA, onB, other, one.Stale)
		}
	}
}

func TestALapseIsNoWayAroundTheLimit(t *testing.T) {
	w, a := limited(.3, .25)
	w.run(30)
	a.session, a.rate = false, 1
	w.run(8)
	a.session, a.rate = true, .25
	fixture.Equal(t, w.run(15), "a/pod:x/GPU-a/compute[1000]", "found")
}

func TestReconnectIsNotUnderreporting(t *testing.T) {
	for lost := range 6 {
		w := newWorld()
		a := w.process("a", "pod:x", gpuA)
		a.rate, a.charged = .6, .6
		w.run(30 + lost)
		a.session = false // it continues in its last turn, which nobody charges
		w.run(4)
		a.session = true
		fixture.Equal(t, w.run(30), "", "lost its session after %d s: found", 30+lost)
	}
}

// TestShortLivesAreJudgedTogether has a workload of short processes without the hook. No process is seen twice.
func TestShortLivesAreJudgedTogether(t *testing.T) {
	for _, c := range []struct {
		name   string
		every  int // seconds from one process to the next
		change func(a *guest)
		want   string
	}{
		{"all the time", 1, func(*guest) {}, "a/pod:x/GPU-a/unhooked"},
		{"a third of the time", 3, func(*guest) {}, "a/pod:x/GPU-a/unhooked"},
		{"a hundredth of the GPU", 3, func(a *guest) { a.rate = .03 }, ""},
		{"under the hook", 1, func(a *guest) { a.session, a.charged = true, 1 }, ""},
		{"ungoverned", 1, func(a *guest) { a.tenant = "" }, ""},
	} {
		w := newWorld()
		w.young = true
		w.quotas["a"] = policy.Quota{Limit: 1}
		w.step()
		found := 0
		for i := range 60 {
			var a *guest
			if i%c.every == 0 {
				a = w.process("a", "pod:x", gpuA)
				a.session, a.rate = false, 1
				c.change(a)
			}
			got := w.step()
			found += got.accuses(t, c.name, c.want, a)
			fixture.If(t, c.want != "" && i >= 30 && got.Known[Subject{"a", "pod:x"}],
				"%s: after %d s it is clean", c.name, i)
			if a != nil {
				w.end(a)
			}
		}
		fixture.Equal(t, found >= 60/c.every/2, c.want != "", "%s: it is found, %d times in a minute", c.name, found)
	}
}

// TestLapsesAreTheWorkloads has a workload of successive processes. Each has a
// session at first, and then none for less than the grace period.
func TestLapsesAreTheWorkloads(t *testing.T) {
	for _, c := range []struct {
		name         string
		hooked, long int // seconds with a session, and seconds until its end
		young        bool
		rate         float64 // use of the GPU without one
		want         string
	}{
		{"a second with a session, 8 without", 1, 9, true, 1, "a/pod:x/GPU-a/unhooked"},
		{"10 s with a session, 8 without", 10, 18, false, 1, "a/pod:x/GPU-a/unhooked"},
		{"a hundredth of the GPU without", 1, 9, true, .01, ""},
		{"listed for a second after the end", 1, 2, true, 0, ""},
		{"listed for 3 s after the end", 4, 7, false, 0, ""},
	} {
		w := newWorld()
		w.young = c.young
		w.quotas["a"] = policy.Quota{Limit: 1}
		w.step()
		found := 0
		for range 180 / c.long {
			a := w.process("a", "pod:x", gpuA)
			for i := range c.long {
				a.session, a.rate, a.charged = i < c.hooked, 1, 1
				if !a.session {
					a.rate = c.rate
				}
				found += w.step().accuses(t, c.name, c.want, a)
			}
			w.end(a)
		}
		fixture.Equal(t, found >= 20, c.want != "", "%s: it is found, %d times in 3 minutes", c.name, found)
	}
}

func TestAProcessIsNotNewAfterSilence(t *testing.T) {
	w := newWorld()
	w.run(1)
	w.pass(time.Second)
	w.process("a", "pod:x", gpuA).session = false
	w.run(5)
	w.silent[gpuA] = true
	fixture.Equal(t, w.run(5), "", "found on a GPU without answers")
	w.silent[gpuA] = false
	fixture.Equal(t, w.step().found(), "a/pod:x/GPU-a/unhooked[1000]", "a process that was known before: found")
}

// set changes a value of a process by a word of testdata/compared.tsv.
func (a *guest) set(word string) {
	key, value, _ := strings.Cut(word, "=")
	v, _ := strconv.ParseFloat(strings.TrimSuffix(value, "+"), 64)
	bytes := uint64(v * gib)
	if strings.HasSuffix(value, "+") {
		bytes++
	}
	switch key {
	case "unhooked":
		a.session = false
	case "unknown":
		a.Known = false
	case "aside":
		a.aside = true
	case "memory":
		a.Memory = bytes
	case "committed":
		a.committed = bytes
	default:
		*map[string]*float64{"rate": &a.rate, "charged": &a.charged, "bus": &a.bus}[key] = v
	}
}

// TestAuditCompares holds what audits find when they compare the books with the driver: testdata/compared.tsv.
func TestAuditCompares(t *testing.T) {
	for _, row := range fixture.Rows(t, "testdata/compared.tsv") {
		is := map[string][]string{}
		for part := range strings.SplitSeq(row[2], "; ") {
			words := strings.Fields(part)
			is[words[0]] = words[1:]
		}
		var q policy.Quota
		for _, term := range is["quota"] {
			key, value, _ := strings.Cut(term, "=")
			v := fixture.Value(strconv.ParseFloat(value, 64))(t)
			switch key {
			case "limit":
				q.Limit = v
			case "bandwidth":
				q.Bandwidth = v
			case "cap":
				q.Memory = uint64(v) * gib
			}
		}
		w := newWorld()
		w.quotas["a"] = q
		w.step()
		w.pass(time.Second)
		place := func(tenant, workload string, words []string) {
			a := w.process(tenant, workload, gpuA)
			for _, word := range words {
				a.set(word)
			}
		}
		place("a", "pod:x", is["x"])
		place("a", "pod:y", is["y"])
		for range 3 * min(1, len(is["others"])) {
			place("b", "pod:z", is["others"])
		}
		together, _ := strconv.ParseFloat(strings.Join(is["gpu"], ""), 64)
		w.together[gpuA] = together
		var found []string
		for range fixture.Value(strconv.Atoi(row[0]))(t) {
			w.together[gpuA] += together
			found = append(found, strings.Fields(w.step().found())...)
		}
		slices.Sort(found)
		fixture.Equal(t, strings.Join(slices.Compact(found), " "), strings.TrimPrefix(row[3], "none"), "%s: found", row[1])
	}
}

func TestDriftIsWhatTheDriverCountsAboveTheBooks(t *testing.T) {
	w := newWorld()
	x, y := w.process("a", "pod:x", gpuA), w.process("a", "pod:x", gpuA)
	x.Memory, x.committed, y.Memory, y.committed = 5*gib, 4*gib, gib, 2*gib
	got := w.step().Workloads
	fixture.Stop(t, len(got) != 1 || got[0].Drift == nil || *got[0].Drift != 0 || got[0].Processes != 2, "%+v", got)
	y.Known = false
	if got := w.step(); got.Workloads[0].Drift != nil || got.Known[Subject{"a", "pod:x"}] {
		t.Errorf("memory is not known, and the drift is %v", *got.Workloads[0].Drift)
	}
}

func TestAWindowAccusesOnce(t *testing.T) {
	w, a := limited(.5, .8)
	me, accused, clean := Subject{"a", "pod:x"}, 0, 0
	for i := range 60 {
		got := w.step()
		accused += len(got.Violations)
		if i > 20 && got.Known[me] {
			clean++
		}
	}
	if accused < 7 || accused > 11 || clean != 0 {
		t.Errorf("in 60 s accused %d times and %d times clean, want once for each of the driver's samples and never",
			accused, clean)
	}
	a.rate, a.charged = .4, .4
	w.run(20)
	if got := w.step(); len(got.Violations) != 0 || !got.Known[me] {
		t.Errorf("within its limit again: %v %v", got.Violations, got.Known)
	}
	n := w.step().Workloads[0].Violations[OverCompute]
	fixture.If(t, n < 7 || n > 15, "%d audits counted", n)
}

func TestUnknownIsNotClean(t *testing.T) {
	me := Subject{"a", "pod:x"}
	for _, c := range []struct {
		name   string
		change func(w *world, a *guest)
		known  bool
		listed bool
	}{
		{"all is known", func(*world, *guest) {}, true, true},
		{"memory is not", func(_ *world, a *guest) { a.Known = false }, false, true},
		{"not asked again", func(w *world, _ *guest) { w.deaf = true }, false, true},
		{"the driver does not answer", func(w *world, _ *guest) { w.silent[gpuA] = true }, false, true},
		{"and lists nobody", func(w *world, a *guest) { a.committed, a.UUID = gib, gpuB; w.silent[gpuA] = true },
			false, true},
		{"it lists nobody who has memory", func(w *world, a *guest) {
			b := w.process("b", "pod:z", gpuA)
			b.committed = gib
			b.UUID = gpuB
			a.UUID = gpuB
			w.silent[gpuA] = true
		}, false, true},
		{"it ended", func(w *world, a *guest) { w.end(a) }, false, false},
	} {
		w := newWorld()
		a := w.process("a", "pod:x", gpuA)
		fixture.Equal(t, w.step().Known[me], false, "%s: known before the driver sampled", c.name)
		w.run(20)
		c.change(w, a)
		got := w.step()
		fixture.Equal(t, got.Partial, w.silent[gpuA], "%s: partial", c.name)
		if known, listed := got.Known[me]; known != c.known || listed != c.listed || len(got.Violations) > 0 {
			t.Errorf("%s: known %v, listed %v, found %q", c.name, known, listed, got.found())
		}
	}
}

func TestADriverWithoutSamplesIsAnAnswer(t *testing.T) {
	w := newWorld()
	w.blind, w.quotas["a"] = true, policy.Quota{Limit: .5}
	a := w.process("a", "pod:x", gpuA)
	a.charged = .5
	me := Subject{"a", "pod:x"}
	fixture.Equal(t, w.step().Known[me], false, "known at once")
	got := w.run(30)
	fixture.If(t, got != "" || !w.step().Known[me], "found %q", got)
	a.charged = .6
	fixture.Equal(t, w.run(30), "a/pod:x/GPU-a/compute[1000]", "the audit does not judge what was charged")

	// A workload is unknown once the driver stops sampling.
	w = newWorld()
	w.process("a", "pod:x", gpuA)
	w.run(30)
	w.blind = true
	w.run(int(oldSample/time.Second) + 5)
	fixture.Equal(t, w.step().Known[me], false, "known, though the driver stopped sampling")
}

func TestBooksThatBeginAnew(t *testing.T) {
	w, _ := limited(.5, .45)
	for i := range 297 {
		if i%23 == 22 {
			w.tenants["a"+gpuA].ChargedSeconds = 0 // the broker was restarted
		}
		if got := w.step(); len(got.Violations) > 0 {
			t.Fatalf("second %d: %s: %s", i, got.found(), got.Violations[0].Text)
		}
	}
	b := w.books()
	b.Tenants = nil // the new broker has no books yet
	b.Now = b.Now.Add(time.Second)
	b.DeviceProcesses[0].At = b.Now
	if got := w.audit.Look(b); len(got.Violations) > 0 || got.Known[Subject{"a", "pod:x"}] {
		t.Errorf("without books: %s, known %v", got.found(), got.Known)
	}
}

func TestASessionThatSaysNothingOfTheGPU(t *testing.T) {
	for _, governed := range []bool{false, true} {
		w := newWorld()
		if !governed {
			delete(w.together, gpuA)
		}
		a := w.process("a", "pod:x", gpuA)
		a.aside, a.rate, a.Memory = true, .5, 20*gib
		want := ""
		if governed {
			want = "a/pod:x/GPU-a/reports[1000]"
		}
		fixture.Equal(t, w.run(30), want, "governed %v: found", governed)
		fixture.Equal(t, w.step().Known[Subject{"a", "pod:x"}], !governed, "governed %v: known", governed)
		a.Memory = 0
		fixture.If(t, governed && w.run(30) != want, "GPU time that nobody is charged for is not found")
	}
}

func TestANewLimitIsNotForWhatWas(t *testing.T) {
	w, a := limited(.8, .75)
	w.run(30)
	w.quotas["a"] = policy.Quota{Limit: .2}
	a.rate, a.charged = .2, .2
	fixture.Equal(t, w.run(40), "", "found")
}

func TestAuditSurvivesClocks(t *testing.T) {
	for _, jump := range []time.Duration{-time.Hour, -10 * time.Second, 10 * time.Second, time.Hour} {
		w, a := limited(.5, .5)
		w.run(33)
		w.now, w.sampled = w.now.Add(jump), w.sampled.Add(jump)
		fixture.Equal(t, w.run(40), "", "set by %v: found", jump)
		fixture.Equal(t, w.step().Known[Subject{"a", "pod:x"}], true, "set by %v: known 40 s later", jump)
		a.rate, a.charged = .6, .6
		fixture.Equal(t, w.run(40), "a/pod:x/GPU-a/compute[1000]", "set by %v: found then", jump)
	}
}

func TestAuditReportsQuotas(t *testing.T) {
	w := newWorld()
	w.quotas["a"] = policy.Quota{Guarantee: .3, Limit: 1, Reserved: gib, LaunchWait: quota.Wait(time.Millisecond)}
	w.quotas["b"] = policy.Quota{}
	a := w.process("a", "pod:x", gpuA)
	a.rate, a.charged, a.bus = .6, .5, .25
	w.together[gpuB] = 0
	w.run(30)
	rows := w.step().Quotas
	fixture.Need(t, len(rows), 4, "rows")
	r := rows[0]
	fixture.If(t, r.Tenant != "a" || r.GPU != gpuA || r.Guarantee != .3 || r.Reserved != gib ||
		r.LaunchWait != quota.Wait(time.Millisecond) || r.Bandwidth != 1, "%+v", r)
	fixture.If(t, r.Charge == nil || !near(*r.Charge, .1) || r.Bus == nil || !near(*r.Bus, .25),
		"charge %v, bus %v", r.Charge, r.Bus)
	for _, r := range rows[1:] {
		fixture.If(t, r.Charge != nil || r.Bus != nil, "%s is not on %s and has a drift", r.Tenant, r.GPU)
	}
}

func TestAuditForgets(t *testing.T) {
	w := newWorld()
	w.quotas["a"] = policy.Quota{}
	a := w.process("a", "pod:x", gpuA)
	w.process("", "unit:other", gpuA).session = false
	w.run(3)
	w.end(a)
	w.tenants = map[string]*wire.TenantStats{}
	for range 9 {
		w.pass(time.Minute - time.Second)
		w.step()
	}
	rows := w.step().Workloads
	fixture.If(t, len(rows) != 1 || rows[0].Processes != 0, "after 9 minutes: %+v", rows)
	w.pass(2 * time.Minute)
	w.step()
	rows = w.step().Workloads
	fixture.If(t, len(rows) != 0 || len(w.audit.gpus[gpuA].tenants) != 0, "after 11 minutes: %+v", rows)

	// The policy no longer has the tenant, as after a job's end.
	w = newWorld()
	w.quotas["a"] = policy.Quota{}
	job := w.process("a", "pod:x", gpuA)
	w.process("", "unit:other", gpuA).session = false
	w.run(3)
	w.end(job)
	w.step()
	fixture.Equal(t, len(w.audit.gpus[gpuA].tenants), 1, "the audit does not know the tenant")
	delete(w.quotas, "a")
	w.tenants = map[string]*wire.TenantStats{}
	w.run(2)
	if rows := w.step(); len(rows.Workloads) != 0 || len(rows.Quotas) != 0 || len(w.audit.gpus[gpuA].tenants) != 0 {
		t.Errorf("rows of a tenant that no longer exists: %+v", rows)
	}

	// Many tenants come and go at once.
	w = newWorld()
	w.quotas["a"] = policy.Quota{}
	for i := range 3 * maxWorkloads {
		if i%(maxWorkloads/2) == 0 {
			w.step()
			w.processes = w.processes[:0]
		}
		w.process("a", fmt.Sprint("unit:", i), gpuA)
	}
	w.run(3)
	fixture.AtMost(t, len(w.audit.gpus[gpuA].tenant("a").works), 2*maxWorkloads, "workloads are remembered")
	fixture.AtMost(t, len(w.audit.gpus[gpuA].processes), 2*len(w.processes),
		"… processes are remembered, of %d", len(w.processes))
}

func TestEvidenceIsBounded(t *testing.T) {
	w := newWorld()
	w.step()
	w.pass(time.Second)
	for range 3 * maxPIDs {
		w.process("a", "pod:x", gpuA).session = false
	}
	w.step()
	got := w.step().Violations
	if len(got) != 1 || got[0].Value != 3*maxPIDs || len(got[0].PIDs) != maxPIDs || !slices.IsSorted(got[0].PIDs) {
		t.Errorf("%+v", got)
	}
}

// TestOthersUseTheGPU compares the part of a GPU's time that the neighbours of a process use, by the driver's samples.
// Two of the three are of one workload, and one of no known workload.
func TestOthersUseTheGPU(t *testing.T) {
	t.Parallel()
	const minePID, idlePID, busyPID = 1, 2, 3
	var g Neighbours
	at := time.Unix(1e9, 0)
	uses := func(mine, idle, busy float64, sampled time.Time) Books {
		var b Books
		for i, sm := range []float64{mine, idle, busy} {
			p := collectors.DeviceProcess{UUID: "GPU-0", SM: sm, Sampled: sampled}
			p.Process.PID = i + 1
			if p.Process.PID != idlePID {
				p.Process.Workload = &host.Workload{Key: "user:1000"}
			}
			b.DeviceProcesses = append(b.DeviceProcesses, p)
		}
		b.DeviceProcesses = append(b.DeviceProcesses, collectors.DeviceProcess{UUID: "GPU-0", SM: mine, Sampled: sampled,
			Kind: collectors.KindServer, Process: host.Process{PID: 9}})
		return b
	}
	g.Look(uses(10, 0, 3, at))
	g.Look(uses(12, 0, 5, at.Add(5*time.Second)))
	for pid, want := range map[int]float64{minePID: 0.4, busyPID: 0.4, idlePID: 0.8} {
		fixture.Near(t, g.Others("GPU-0", pid), want, 1e-9, "beside process %d the others use", pid)
	}
	g.Look(uses(12, 0, 5, at.Add(5*time.Second))) // no new samples
	fixture.Equal(t, g.Others("GPU-0", minePID), 0.4, "between two samples the others use")
	fixture.Equal(t, g.Others("GPU-1", minePID), 0, "others use … of another GPU")
	var unknown Neighbours
	unknown.Look(uses(0, 0, 0, time.Time{}))
	fixture.Equal(t, unknown.Others("GPU-0", minePID), 1, "without samples the others may use all")
}

// Two programs run under Gemini's hook. One of them launches all that it is given (22 s of the GPU's time, of which 1.3
// s are charged). A third process has no tenant.
func TestClaimsUnderGeminisHookAreCompared(t *testing.T) {
	t.Parallel()
	for name, gpu := range map[string]string{"a table that is named after the GPU": "GPU-a", "another": ""} {
		t.Run(name, func(t *testing.T) {
			var a GeminiAudit
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			process := func(pid int, gpu string, at time.Time, sm float64) collectors.DeviceProcess {
				return collectors.DeviceProcess{UUID: gpu,
					Process: host.Process{PID: pid, Start: 1, Began: start, Workload: &host.Workload{Key: "unit:w"}},
					Kind:    "compute", Known: true, Memory: 20 << 30, SM: sm, Sampled: at, At: at}
			}
			var last []wire.GeminiStats
			for s := range 31 {
				now, passed := start.Add(time.Duration(s)*time.Second), float64(s)
				last = []wire.GeminiStats{{Listen: "127.0.0.1:50052", GPU: gpu,
					Processes: map[int]string{10: "gemini:liar", 11: "gemini:honest"}, Tenants: []wire.GeminiTenant{
						{TenantStats: wire.TenantStats{Tenant: "gemini:liar", ChargedSeconds: 1.3 / 30 * passed}},
						{TenantStats: wire.TenantStats{Tenant: "gemini:honest", ChargedSeconds: 0.2 * passed}},
						{TenantStats: wire.TenantStats{Tenant: "gemini:absent"}},
					}}}
				a.Look(Books{Now: now, DeviceProcesses: []collectors.DeviceProcess{
					process(10, "GPU-a", now, 22./30*passed), process(11, "GPU-a", now, 0.2*passed),
					process(12, "GPU-b", now, passed)}}, last)
			}
			for i, want := range []float64{(22 - 1.3) / 30, 0} {
				n := last[0].Tenants[i]
				fixture.If(t, n.Charge == nil || math.Abs(*n.Charge-want) > 0.02 || n.GPU != "GPU-a",
					"%+v: %v, want a drift of %.2f", n, n.Charge, want)
			}
			if n := last[0].Tenants[2]; n.Charge != nil {
				t.Errorf("of who is not there: %v", *n.Charge)
			}
		})
	}
}
