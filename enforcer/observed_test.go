package enforcer

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

func TestGPUProcesses(t *testing.T) {
	t.Parallel()
	at := time.Unix(7, 0)
	process := func(pid int, kind string) collectors.DeviceProcess {
		return collectors.DeviceProcess{UUID: "GPU-1", Kind: kind, SM: 3, Sampled: at,
			Process: host.Process{PID: pid, Workload: &host.Workload{Key: "user:1001"}}}
	}
	unknown, unnamed := process(5, "compute"), process(6, "compute")
	unknown.Unknown, unnamed.Process.Workload = true, nil
	b := audit.Books{Sessions: []audit.Session{{PID: 2}},
		DeviceProcesses: []collectors.DeviceProcess{process(1, "compute"), process(2, "compute"), process(3, "graphics"),
			process(4, collectors.KindServer), unknown, unnamed},
		Tenant: func(h collectors.DeviceProcess) (string, bool) { return "team", true }}
	want := []jobs.GPUProcess{
		{PID: 1, GPU: "GPU-1", Tenant: "team", Workload: "user:1001", Used: 3, Sampled: at},
		{PID: 2, GPU: "GPU-1", Tenant: "team", Workload: "user:1001", Hooked: true, Used: 3, Sampled: at},
	}
	got := gpuProcesses(b)
	fixture.If(t, !reflect.DeepEqual(got, want), "%+v, want %+v", got, want)
}

// A busyHost has this process on a GPU.
type busyHost struct{}

func (h busyHost) DeviceProcesses() []collectors.DeviceProcess {
	p, _ := h.Process(os.Getpid())
	return []collectors.DeviceProcess{{UUID: "GPU-1", Kind: "compute", Process: p}}
}
func (busyHost) Process(pid int) (host.Process, error) {
	if pid != os.Getpid() {
		return host.Process{}, os.ErrNotExist
	}
	return host.Process{PID: pid, Workload: &host.Workload{Key: "user:1001"}}, nil
}
func (busyHost) Silent() map[string]bool                           { return nil }
func (busyHost) Memory(string) (total, free, kept uint64, ok bool) { return 1 << 30, 0, 0, true }
func (busyHost) Rates(string) (link, memory float64, ok bool)      { return 0, 0, false }

// watching returns an enforcer of the host that asks NCCL at the address.
func watching(t *testing.T, address string, simulated bool) *Enforcer {
	t.Helper()
	dir := fixture.ShortDir(t)
	all := policy.Quota{Limit: 1, Bandwidth: 1}
	table := policy.Table{Overcommit: []string{policy.All}, Turn: time.Minute, Default: policy.Terms{Priority: policy.PriorityNormal, Quota: all}}
	e, err := New(Options{Policy: policy.New(table, policy.HostView{}, nil), Dir: dir, Host: busyHost{}, NCCL: address, Trusted: []string{"2.28"},
		Simulated: simulated, Broker: broker.Options{Socket: filepath.Join(dir, "s")}})
	fixture.Must(t, err)
	return e
}

// TestRanksHaveWorkloads shows processes with a session that the driver does not
// list. One of them has ended, and nobody knows its workload.
func TestRanksHaveWorkloads(t *testing.T) {
	t.Parallel()
	e := watching(t, "", false)
	defer e.Close()
	ended := os.Getpid() + 1
	for i, pid := range []int{os.Getpid(), ended} {
		e.jobs.Observe(broker.Traced{Session: uint64(i), PID: pid, Tenant: "team", Trace: wire.TraceIn(make([]byte, wire.TraceSize))})
	}
	ranks, _ := e.observed(audit.Books{})
	fixture.If(t, len(ranks) != 2 || ranks[0].Workload != "user:1001" || ranks[1].Workload != "",
		"%+v, want user:1001 as the first one's workload, and none of the second", ranks)
}

// TestHoldsExcuseWorkloads holds a workload back for each cause. It then has no session, hangs, and is
// found to take more than its quota; its tenant gets less than its guarantee. The audit, the escalation, the
// jobs and the metric for health each judge what the cause does not explain, and that alone.
func TestHoldsExcuseWorkloads(t *testing.T) {
	t.Parallel()
	s, promised := audit.Subject{Tenant: "a", Workload: "user:1001"}, policy.Quota{Guarantee: .5, Limit: 1}
	record := func(phase suspend.Phase) func(*Enforcer) {
		return func(e *Enforcer) {
			e.swap.Restore(time.Now(), []suspend.Record{{Tenant: s.Tenant, Workload: s.Workload, Phase: phase,
				Processes: []suspend.Process{{Target: action.Target{PID: 7000, Start: 1}}}}})
		}
	}
	for cause, c := range map[audit.Hold]struct {
		hold   func(*Enforcer)
		judges string
	}{
		0:               {nil, "audit qos escalation jobs"},
		audit.Filled:    {nil, "audit qos escalation jobs"}, // TestRefusalsBlameTheRightOwner has the broker tell it
		audit.Starved:   {nil, "qos jobs"},                  // likewise
		audit.Suspended: {record(suspend.Suspended), "qos escalation"},
		audit.Returning: {record(suspend.Resuming), "qos"},
		audit.Paused:    {func(e *Enforcer) { fixture.Must(t, e.terms.hold(s, true)) }, "audit escalation"},
		audit.Throttled: {func(e *Enforcer) { e.terms.change(func(t *terms) { t.throttled = map[string]float64{"a": .5} }) }, "audit escalation jobs"},
		audit.Paced:     {func(e *Enforcer) { e.terms.change(func(t *terms) { t.paced = pacer{{"a", "GPU-1"}: -1} }) }, "audit escalation jobs"},
		audit.Waiting: {func(e *Enforcer) {
			var o broker.Options
			e.swap.Serve(&o)
			o.Later(broker.Request{PID: os.Getpid(), Tenant: "a", GPU: "GPU-1", Bytes: 1})
			e.swap.Look(time.Now(), audit.Books{DeviceProcesses: busyHost{}.DeviceProcesses(),
				Tenant: func(collectors.DeviceProcess) (string, bool) { return "a", true }})
		}, "audit qos escalation"},
	} {
		e := watching(t, "", false)
		defer e.Close()
		e.groups = map[audit.Subject]*processGroup{s: {}}
		if c.hold != nil {
			c.hold(e)
		}
		var of audit.Audit
		var qos audit.QoS
		var up escalation.Escalation
		var found audit.Audited
		rows, now := []wire.QuotaStats{{Tenant: "a", GPU: "GPU-1", Quota: promised}}, time.Unix(1e9, 0)
		process := host.Process{PID: 7000, Start: 1, Began: now, Workload: &host.Workload{Key: s.Workload}}
		for n := range 60 {
			now = now.Add(time.Second)
			b := audit.Books{Now: now, Names: []string{"a"}, Holds: e.heldBack(),
				Quota:           func(string, string) policy.Quota { return promised },
				Tenant:          func(collectors.DeviceProcess) (string, bool) { return "a", true },
				DeviceProcesses: []collectors.DeviceProcess{{UUID: "GPU-1", Kind: "compute", Process: process, At: now}},
				Tenants:         []wire.TenantStats{{Tenant: "a", GPU: "GPU-1", Sessions: 1, WantedSeconds: float64(n)}}}
			if c.hold == nil {
				b.Holds.Process = func(int, string) audit.Hold { return cause }
			}
			if n < 15 {
				b.Sessions = []audit.Session{{PID: 7000, Start: 1, Tenant: "a", GPUs: []audit.SessionGPU{{UUID: "GPU-1"}}}}
			}
			found = of.Look(b)
			qos.Look(b, rows)
			up.Judge(now, escalation.Findings{Violations: []audit.Violation{{Subject: s, GPU: "GPU-1", Text: "it takes more"}},
				Seen: map[audit.Subject]escalation.Status{s: {Known: true}}, Actions: 9, Holds: found.Holds(b.Holds),
				Steps: func(string) policy.Steps {
					return policy.Steps{Mode: policy.Throttle, Confirm: 1, Of: 1, Hold: time.Hour}
				}})
		}
		level, _ := up.Level(s)
		_, _ = e.observed(audit.Books{})
		judges := strings.Join(slices.DeleteFunc([]string{"audit", "qos", "escalation", "jobs"}, func(judge string) bool {
			return !map[string]bool{"audit": len(found.Violations) > 0, "qos": rows[0].QoS[0].Violations > 0,
				"escalation": level > policy.Warn, "jobs": !e.jobs.Held(s.Tenant, s.Workload)}[judge]
		}), " ")
		fixture.Equal(t, judges, c.judges, "those that judge one that is held back, cause %b:", cause)
		stands := slices.ContainsFunc(e.heldStats(), func(h wire.HeldStats) bool { return h.Stands && h.Cause == cause.String() })
		fixture.Equal(t, stands, cause.Has(audit.Standing), "health is told that it stands still, cause %b:", cause)
	}
}

// TestUnenforcedQuotaIsReported: a part of an unknown memory is no cap, which the log and the metrics say, once.
func TestUnenforcedQuotaIsReported(t *testing.T) {
	t.Parallel()
	var log fixture.Transcript
	e := &Enforcer{unheld: map[place]bool{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	b := audit.Books{Tenants: []wire.TenantStats{{Tenant: "a", GPU: "g", Sessions: 1}}}
	for _, c := range []struct {
		quota quota.Quota
		want  string
		lines int
	}{
		{quota.Quota{}, "[{compute hook} {memory hook} {copies hook}]", 0},
		{quota.Quota{MemoryPart: .5}, "[{compute hook} {copies hook} {memory none}]", 1},
		{quota.Quota{MemoryPart: .5}, "[{compute hook} {copies hook} {memory none}]", 1},
		{quota.Quota{MemoryPart: .5, Memory: 1 << 30}, "[{compute hook} {memory hook} {copies hook}]", 1},
		{quota.Quota{MemoryPart: .5}, "[{compute hook} {copies hook} {memory none}]", 2},
	} {
		fixture.Equal(t, fmt.Sprint(e.holders(b, &wire.QuotaStats{Tenant: "a", GPU: "g", Quota: c.quota})), c.want, "%+v", c.quota)
		fixture.Equal(t, strings.Count(log.String(), "not in force"), c.lines, "warnings")
	}
}

// TestNCCLIsAsked in real jobs; the real processes with the PIDs of simulated ones are others.
func TestNCCLIsAsked(t *testing.T) {
	t.Parallel()
	for simulated, want := range map[bool]string{false: "localhost:28028 [2.28] true", true: " [] false"} {
		e := watching(t, "localhost:28028", simulated)
		defer e.Close()
		fixture.Equal(t, fmt.Sprint(e.jobs.RAS, " ", e.jobs.Trusted, " ", e.jobs.Log != nil), want, "simulated %v", simulated)
	}
}

// The owner of a process follows from this host's facts. On a simulated host it follows from the simulation alone. A
// process without a workload, or an ended one, has no owner.
func TestOwnerOfADeviceProcess(t *testing.T) {
	t.Parallel()
	exe := fixture.Value(os.Readlink("/proc/self/exe"))(t)
	all := policy.Quota{Limit: 1, Bandwidth: 1}
	p := policy.New(policy.Table{Default: policy.Terms{Quota: all}, Rules: []policy.Rule{
		{Name: "program", Select: []policy.Selector{{Executables: []string{exe}}}, Terms: policy.Terms{Quota: all}},
		{Name: "unit", Select: []policy.Selector{{Units: []string{"a.service"}}}, Terms: policy.Terms{Quota: all}},
	}}, policy.HostView{}, nil)
	zombie := exec.Command("true")
	fixture.Must(t, zombie.Start())
	defer func() { _ = zombie.Wait() }()
	fixture.Eventually(t, "its first thread ends", func() bool { return procs.State("/proc", zombie.Process.Pid) == 'Z' })
	headless := startHeadless(t)
	unit := &host.Workload{Key: "unit:a.service", Kind: host.KindUnit, Unit: "a.service"}
	user := &host.Workload{Key: "user:0", Kind: host.KindUser}
	for name, c := range map[string]struct {
		identities identityCache
		pid        int
		workload   *host.Workload
		want       string
	}{
		"a program":   {identityCache{procfs: "/proc"}, os.Getpid(), user, "program"},
		"a unit":      {identityCache{procfs: "/proc"}, os.Getpid(), unit, "unit"},
		"no name yet": {identityCache{procfs: "/proc"}, os.Getpid(), nil, ""},
		"gone":        {identityCache{procfs: "/proc"}, 1 << 30, user, ""},
		"simulated":   {identityCache{procfs: "/proc", simulated: true}, 1 << 30, unit, "unit"},
		"simulated, not ours": {identityCache{procfs: "/proc", simulated: true}, os.Getpid(), user,
			policy.DefaultTenant},
		"simulated, no name": {identityCache{procfs: "/proc", simulated: true}, 1 << 30, nil, ""},
		"ended":              {identityCache{procfs: "/proc"}, zombie.Process.Pid, user, ""},
		"ended but a thread": {identityCache{procfs: "/proc"}, headless, unit, "unit"},
	} {
		got := c.identities.tenant(p, time.Now(),
			collectors.DeviceProcess{Process: host.Process{PID: c.pid, Workload: c.workload}})
		fixture.If(t, got != c.want, "%s: of %q, want %q", name, got, c.want)
	}
}

// startHeadless starts a program whose first thread ends while another continues. It lives until the test ends.
func startHeadless(t *testing.T) (pid int) {
	t.Helper()
	dir := t.TempDir()
	source := `#include <pthread.h>
#include <unistd.h>
static void *go_on(void *none) { for (;;) pause(); }
int main(void) { pthread_t other; pthread_create(&other, 0, go_on, 0); pthread_exit(0); }`
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "headless.c"), []byte(source), 0o600))
	program := filepath.Join(dir, "headless")
	out, err := exec.Command("gcc", "-pthread", "-o", program, program+".c").CombinedOutput()
	fixture.Stop(t, err != nil, "build it: %v %s", err, out)
	cmd := exec.Command(program)
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	fixture.Eventually(t, "its first thread ends", func() bool { return procs.State("/proc", cmd.Process.Pid) == 'Z' })
	return cmd.Process.Pid
}

// TestConfigureDoesNotBlock gives two policies at the same moment to an enforcer whose
// Run has ended. The last one is kept.
func TestConfigureDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails when all wait
		for range 10_000 {
			e := &Enforcer{policy: make(chan *policy.Policy, 1)}
			var both sync.WaitGroup
			var there atomic.Int32
			for range 2 {
				both.Go(func() {
					for there.Add(1); there.Load() < 2; { // so that they meet
						runtime.Gosched()
					}
					e.Configure(new(policy.Policy))
				})
			}
			both.Wait()
			last := new(policy.Policy)
			e.Configure(last)
			fixture.Need(t, <-e.policy, last, "the last policy is not the one that is kept")
		}
	})
}

// TestWhoCrowdsTheBroker names a tenant whose jobs have most of the sessions: they excuse each other of nothing.
func TestWhoCrowdsTheBroker(t *testing.T) {
	t.Parallel()
	for tenants, want := range map[string]string{"": "", "a b": "", "a b b": "b", "a b c": "", "default default b": "",
		"a default a": "a"} {
		var all []audit.Session
		for _, tenant := range strings.Fields(tenants) {
			all = append(all, audit.Session{Tenant: tenant})
		}
		fixture.Equal(t, crowding(all), want, "of sessions of %q, the tenant that crowds is", tenants)
	}
}
