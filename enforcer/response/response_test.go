package response

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
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
	"gpusteward/enforcer/swap"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// TestRefusedSuspensionLeavesThePause refuses a paused workload for want of host memory: the broker still holds it.
func TestRefusedSuspensionLeavesThePause(t *testing.T) {
	t.Parallel()
	s := audit.Subject{Tenant: "a", Workload: "unit:a.service"}
	p := collectors.DeviceProcess{UUID: "GPU-a", Memory: 1,
		Process: host.Process{PID: 7000, Start: 8, Workload: &host.Workload{Key: s.Workload}}}
	terms := NewTerms(new(policy.Policy), nil, true, func() {})
	terms.held[s] = true
	e := &Response{Options: Options{Terms: terms}, Swap: swap.New(swap.Options{Simulated: true,
		Mover: suspend.Mover{Room: func(_, _ map[int]uint64) error { return errors.New("no room") },
			Alive: func(action.Target) bool { return true }},
		Memory: func(string) (uint64, uint64, uint64, bool) { return 0, 0, 0, false }, Jobs: new(jobs.Observer)})}
	e.Swap.Broker = new(broker.Broker)
	e.Swap.Look(time.Now(), audit.Books{DeviceProcesses: []collectors.DeviceProcess{p},
		Tenant: func(collectors.DeviceProcess) (string, bool) { return s.Tenant, true }})
	result, detail := e.suspendGroup(time.Now(), action.ProcessGroup{Subject: s}, "tested")
	if result != escalation.Refused || !strings.Contains(detail, "stays paused") || !strings.Contains(detail, "no room") {
		t.Errorf("%s: %s", result, detail)
	}
	fixture.If(t, !terms.held[s], "it runs again")
}

// TestPausedWorkContinuesWithoutADisk ends an enforcer that cannot save what it paused.
func TestPausedWorkContinuesWithoutADisk(t *testing.T) {
	t.Parallel()
	child := exec.Command("sleep", "600")
	fixture.Must(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	pid := child.Process.Pid
	fixture.Must(t, child.Process.Signal(syscall.SIGSTOP))
	is := func(state byte) func() bool { return func() bool { return procs.State("/proc", pid) == state } }
	fixture.Eventually(t, "it stops", is('T'))
	e := Response{Swap: swap.New(swap.Options{}), Actor: action.Actor{ProcFS: "/proc", Keep: func([]action.Paused) error {
		t.Error("it waits for the disk")
		return nil
	}}}
	e.Actor.Restore([]action.Paused{{Tenant: "a", Workload: "w",
		Stopped: []action.Target{{PID: pid, Start: fixture.Value(procs.ReadStat("/proc", pid))(t).Start}}}})
	e.Close()
	fixture.Eventually(t, "it continues", is('S'))
	fixture.Equal(t, len(e.Actor.Paused()), 0, "workloads that stay paused")
}

// The kernels of a tenant keep the memory busy for 80 % of their time on the GPU. The pacer brings the tenant within
// its part of the bandwidth. The tenant gets its limit back when it needs less.
func TestPacer(t *testing.T) {
	t.Parallel()
	at, q := place{"a", "GPU-0"}, policy.Quota{Limit: .9, Bandwidth: .3}
	p := pacer{}
	share := .9
	step := func(intensity float64) (used float64) {
		share = p.limit(at, q)
		used = share * intensity
		p.look(at, q, used, share)
		return used
	}
	for range 3 {
		step(.8)
	}
	for range 50 {
		if used := step(.8); used > .3*1.1 || used < .3*.8 {
			t.Fatalf("it keeps the memory busy for %.2f of the time, and may for 0.30", used)
		}
	}
	for range 20 {
		step(.1)
	}
	got := p.limit(at, q)
	fixture.If(t, got != .9 || len(p) != 0, "the limit is %.2f when it needs little, want 0.90 again", got)
	q.Bandwidth = 1
	p[at] = .1
	p.look(at, q, 1, 1)
	fixture.Equal(t, p.limit(at, q), .9, "a tenant without a limit of bandwidth is still held")
	p.look(place{"idle", "GPU-0"}, policy.Quota{Limit: 1, Bandwidth: .3}, .5, 0)
	fixture.Equal(t, len(p), 0, "a tenant that used no GPU time is held to none")
}
