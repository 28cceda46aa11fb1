package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestFaultsOfTheHardware checks which events excuse the workloads on a GPU.
func TestFaultsOfTheHardware(t *testing.T) {
	xid := func(code int, s incident.Severity) incident.Event {
		x := incident.XIDs()[code]
		return incident.Event{Kind: incident.KindIncident, What: incident.WhatXID, Code: code, Class: x.Class,
			Severity: max(x.Severity, s)}
	}
	fault := func(what string, c incident.Class, s incident.Severity) incident.Event {
		return incident.Event{Kind: incident.KindIncident, What: what, Class: c, Severity: s}
	}
	follower := xid(79, incident.None)
	follower.Follows = "another"
	for name, c := range map[string]struct {
		event incident.Event
		want  bool
	}{
		"fallen off the bus, by a line": {fault("gpu_fallen_off", incident.HardwareFault, incident.Emergency), true},
		"an uncorrectable error":        {fault("ecc_dbe", incident.MemoryFault, incident.Critical), true},
		"an XID that nobody knows":      {xid(9999, incident.Warning), false},
		"what follows another":          {follower, false},
		"a reset that the driver wants": {xid(incident.RecoveryXID, incident.Critical), true},
		"nothing that the driver wants": {xid(incident.RecoveryXID, incident.None), false},
		"recovery is wanted":            {fault(incident.WhatRecovery, incident.DriverCrash, incident.Critical), true},
		"recovery is not wanted":        {fault(incident.WhatRecovery, incident.DriverCrash, incident.Info), false},
		"a container without memory":    {fault("oom_cgroup", incident.ApplicationFault, incident.Info), false},
		"a check that finds it over": {incident.Event{Kind: incident.KindTransition, Check: "driver_hang",
			Severity: incident.Critical, To: incident.Recovering}, false},
		"a step of the enforcer's": {incident.Event{Kind: incident.KindEnforcement, Severity: incident.Critical,
			Class: incident.HardwareFault}, false},
		"an operator's word about a GPU": {incident.Event{Kind: incident.KindAck, Check: "gpu_lost",
			Severity: incident.Emergency, To: incident.Failed}, false},
	} {
		fixture.Equal(t, isHardware(&c.event), c.want, "%s", name)
	}
}

// TestHardwareIsRemembered lets a GPU lose memory, and checks for how long that counts, including over a restart.
func TestHardwareIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m := monitor(t, dir, Settings{})
		time.Sleep(5 * time.Second)
		fixture.If(t, m.Hardware("GPU-0", time.Hour), "there is a fault before there was one")
		m.Event(collectors.Event{GPU: gpu.ID{Index: 0, UUID: "GPU-0"}, Time: time.Now(), Type: "ecc_dbe"})
		time.Sleep(10 * time.Second)
		if !m.Hardware("GPU-0", time.Minute) || m.Hardware("GPU-0", 5*time.Second) || m.Hardware("GPU-1", time.Minute) {
			t.Error("10 s after the fault it is not there, or of the last 5 s, or of another GPU")
		}
		m.stop()
		again := monitor(t, dir, Settings{})
		time.Sleep(5 * time.Second)
		fixture.If(t, !again.Hardware("GPU-0", time.Minute), "a restart of the agent forgets it")
		time.Sleep(time.Minute)
		fixture.If(t, again.Hardware("GPU-0", time.Minute), "after a minute it counts still")
		told := again.log.String()
		fixture.If(t, strings.Contains(told, "statistics start again"), "a restart that lost nothing says %s", told)
	})
}

// TestFaultsAreBounded reports faults of unknown GPUs.
func TestFaultsAreBounded(t *testing.T) {
	m := NewMonitor(Options{}, Settings{})
	fixture.If(t, m.Hardware("GPU-0", time.Hour), "a fault of nothing")
	now := time.Now()
	for i := range 2 * derived.MostGPUs {
		m.blame(incident.Event{Kind: incident.KindIncident, Class: incident.MemoryFault, Severity: incident.Critical,
			Time: now, Entity: incident.Entity{UUID: string(rune('a' + i))}})
	}
	// the GPU is unknown
	m.blame(incident.Event{Kind: incident.KindIncident, Class: incident.MemoryFault,
		Severity: incident.Critical, Time: now})
	fixture.Equal(t, len(*m.faults.Load()), derived.MostGPUs, "GPUs remembered")
}

// TestHardwareByEveryXIDAndCheck reports every XID, from the driver and in the kernel's log, to a
// monitor of either role, and asks which checks blame the hardware.
func TestHardwareByEveryXIDAndCheck(t *testing.T) {
	for role, checks := range map[string][]*Check{"all": nil, "enforce": HardwareChecks()} {
		for code, x := range incident.XIDs() {
			for _, logged := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					m := monitor(t, "", Settings{}, checks...)
					if logged {
						m.logs(1, fmt.Sprintf("NVRM: Xid (PCI:0000:9b:00): %d, pid=1234, name=python3, no more", code))
					} else {
						m.Event(collectors.Event{GPU: gpu.ID{UUID: "GPU-0"}, Time: time.Now(), Type: "xid", Code: uint64(code)})
					}
					m.pass(5 * time.Second)
					fixture.Equal(t, m.Hardware("GPU-0", time.Minute), x.Hardware() && code != incident.RecoveryXID,
						"role %s, XID %d, logged: %v", role, code, logged)
				})
			}
		}
	}
	blaming := []string{"driver_hang", "ecc_uncorrectable", "gpu_lost", "gpu_recovery_action", "sram_threshold"}
	for _, c := range Checks() {
		for _, l := range c.Levels {
			e := incident.Event{Kind: incident.KindTransition, Check: c.ID, Severity: l.Severity, To: l.Severity.State()}
			fixture.Equal(t, isHardware(&e), slices.Contains(blaming, c.ID) && l.Severity >= incident.Warning, "%s", c.ID)
		}
	}
	fixture.Equal(t, len(HardwareChecks()), len(blaming), "checks that the enforcer has")
}
