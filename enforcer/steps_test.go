package enforcer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/suspend"
)

// TestARefusedSuspensionLeavesThePause refuses a paused workload for want of host
// memory: the broker still holds it.
func TestARefusedSuspensionLeavesThePause(t *testing.T) {
	t.Parallel()
	s := audit.Subject{Tenant: "a", Workload: "unit:a.service"}
	p := collectors.DeviceProcess{UUID: "GPU-a", Memory: 1,
		Process: host.Process{PID: 7000, Start: 8, Workload: &host.Workload{Key: s.Workload}}}
	e := &Enforcer{held: map[audit.Subject]bool{s: true},
		suspender: suspend.Suspender{Room: func(_, _ map[int]uint64) error { return errors.New("no room") }},
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
