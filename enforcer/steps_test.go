package enforcer

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
)

// TestARefusedSuspensionLeavesThePause refuses a paused workload for want of host
// memory: the broker still holds it.
func TestARefusedSuspensionLeavesThePause(t *testing.T) {
	t.Parallel()
	s := audit.Subject{Tenant: "a", Workload: "unit:a.service"}
	p := collectors.DeviceProcess{UUID: "GPU-a", Memory: 1,
		Process: host.Process{PID: 7000, Start: 8, Workload: &host.Workload{Key: s.Workload}}}
	e := &Enforcer{held: map[audit.Subject]bool{s: true},
		suspender: suspend.Suspender{Room: func(_, _ map[int]uint64) error { return errors.New("no room") },
			Alive: func(action.Target) bool { return true }},
		seen: audit.Books{DeviceProcesses: []collectors.DeviceProcess{p},
			Tenant: func(collectors.DeviceProcess) (string, bool) { return s.Tenant, true }}}
	result, detail := e.suspendGroup(time.Now(), action.ProcessGroup{Subject: s}, "tested")
	if result != escalation.Refused || !strings.Contains(detail, "stays paused") || !strings.Contains(detail, "no room") {
		t.Errorf("%s: %s", result, detail)
	}
	if !e.held[s] {
		t.Error("it runs again")
	}
}

// TestAClientOfMPSDoesNotJoin refuses a client of MPS in a suspended workload once, and not
// each second.
func TestAClientOfMPSDoesNotJoin(t *testing.T) {
	t.Parallel()
	s := audit.Subject{Tenant: "a", Workload: "unit:a.service"}
	old := suspend.Process{Target: action.Target{PID: 7000, Start: 8}}
	p := collectors.DeviceProcess{UUID: "GPU-a", Memory: 1, Kind: "mps",
		Process: host.Process{PID: 7001, Start: 8, Workload: &host.Workload{Key: s.Workload}}}
	e := &Enforcer{residence: newResidence(), log: slog.New(slog.DiscardHandler),
		seen: audit.Books{DeviceProcesses: []collectors.DeviceProcess{p},
			Tenant: func(collectors.DeviceProcess) (string, bool) { return s.Tenant, true }}}
	now := time.Now()
	e.suspender.Restore(now, []suspend.Record{{Tenant: s.Tenant, Workload: s.Workload, Phase: suspend.Suspended,
		Processes: []suspend.Process{old}}})
	r, _ := e.suspender.Record(s)
	look := func() uint64 {
		e.joinSuspended(now, r, e.candidate(s).joining(r))
		return e.suspender.Totals().Refused[suspend.MPS]
	}
	fixture.Equal(t, look(), 1, "refusals")
	now = now.Add(restAfter - 1)
	fixture.Equal(t, look(), 1, "refusals in 10 minutes")
	now = now.Add(1)
	fixture.Equal(t, look(), 2, "refusals after 10 minutes")
}
