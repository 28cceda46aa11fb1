package enforcer

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
	e := &response{terms: &inForce{held: map[audit.Subject]bool{s: true}}, swap: swap.New(swap.Options{Simulated: true,
		Mover: suspend.Mover{Room: func(_, _ map[int]uint64) error { return errors.New("no room") },
			Alive: func(action.Target) bool { return true }},
		Memory: func(string) (uint64, uint64, uint64, bool) { return 0, 0, 0, false }, Jobs: new(jobs.Observer)})}
	e.swap.Broker = new(broker.Broker)
	e.swap.Look(time.Now(), audit.Books{DeviceProcesses: []collectors.DeviceProcess{p},
		Tenant: func(collectors.DeviceProcess) (string, bool) { return s.Tenant, true }})
	result, detail := e.suspendGroup(time.Now(), action.ProcessGroup{Subject: s}, "tested")
	if result != escalation.Refused || !strings.Contains(detail, "stays paused") || !strings.Contains(detail, "no room") {
		t.Errorf("%s: %s", result, detail)
	}
	fixture.If(t, !e.terms.held[s], "it runs again")
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
	e := response{swap: swap.New(swap.Options{}), actor: action.Actor{ProcFS: "/proc", Keep: func([]action.Paused) error {
		t.Error("it waits for the disk")
		return nil
	}}}
	e.actor.Restore([]action.Paused{{Tenant: "a", Workload: "w",
		Stopped: []action.Target{{PID: pid, Start: fixture.Value(procs.ReadStat("/proc", pid))(t).Start}}}})
	e.rest()
	fixture.Eventually(t, "it continues", is('S'))
	fixture.Equal(t, len(e.actor.Paused()), 0, "workloads that stay paused")
}
