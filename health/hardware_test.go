package health

import (
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// TestWhatIsTheHardwaresFault says which events excuse whoever was on a GPU.
func TestWhatIsTheHardwaresFault(t *testing.T) {
	t.Parallel()
	xid := func(code int, s Severity) Event {
		x := XIDs()[code]
		return Event{Kind: KindIncident, What: xidName, Code: code, Class: x.Class, Severity: max(x.Severity, s)}
	}
	fault := func(what string, c Class, s Severity) Event {
		return Event{Kind: KindIncident, What: what, Class: c, Severity: s}
	}
	follower := xid(79, None)
	follower.Follows = "another"
	for name, c := range map[string]struct {
		event Event
		want  bool
	}{
		"fallen off the bus, by XID":     {xid(79, None), true},
		"fallen off the bus, by a line":  {fault("gpu_fallen_off", HardwareFault, Emergency), true},
		"an uncorrectable error":         {fault("ecc_dbe", MemoryFault, Critical), true},
		"a program's bad address":        {xid(31, None), false},
		"a program that was ended":       {xid(43, None), false},
		"an XID that nobody knows":       {xid(9999, Warning), false},
		"what follows another":           {follower, false},
		"a reset that the driver wants":  {xid(recoveryXID, Critical), true},
		"nothing that the driver wants":  {xid(recoveryXID, None), false},
		"recovery is wanted":             {fault(recoveryName, DriverCrash, Critical), true},
		"recovery is not wanted":         {fault(recoveryName, DriverCrash, Info), false},
		"a container without memory":     {fault("oom_cgroup", ApplicationFault, Info), false},
		"a check that found a hang":      {Event{Kind: KindTransition, Check: "driver_hang", Severity: Critical, To: Unhealthy}, true},
		"a check that finds it over":     {Event{Kind: KindTransition, Check: "driver_hang", Severity: Critical, To: Recovering}, false},
		"a check of what programs did":   {Event{Kind: KindTransition, Check: "xid_repeat", Severity: Critical, To: Unhealthy}, false},
		"a step of the enforcer's":       {Event{Kind: KindEnforcement, Severity: Critical, Class: HardwareFault}, false},
		"an operator's word about a GPU": {Event{Kind: KindAck, Check: "gpu_lost", Severity: Emergency, To: Failed}, false},
	} {
		if got := isHardware(&c.event); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestHardwareIsRemembered has a GPU lose memory, and looks for how long that
// counts, over a restart too.
func TestHardwareIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m := monitor(t, dir, Settings{})
		time.Sleep(5 * time.Second)
		if m.Hardware("GPU-0", time.Hour) {
			t.Error("there is a fault before there was one")
		}
		m.Event(collectors.Event{GPU: gpu.ID{Index: 0, UUID: "GPU-0"}, Time: time.Now(), Type: "ecc_dbe"})
		time.Sleep(10 * time.Second)
		if !m.Hardware("GPU-0", time.Minute) || m.Hardware("GPU-0", 5*time.Second) || m.Hardware("GPU-1", time.Minute) {
			t.Error("10 s after the fault it is not there, or of the last 5 s, or of another GPU")
		}
		m.stop()
		again := monitor(t, dir, Settings{})
		time.Sleep(5 * time.Second)
		if !again.Hardware("GPU-0", time.Minute) {
			t.Error("a restart of the agent forgets it")
		}
		time.Sleep(time.Minute)
		if again.Hardware("GPU-0", time.Minute) {
			t.Error("after a minute it counts still")
		}
		again.stop()
	})
}

// TestFaultsAreBounded has GPUs that nobody knows fail.
func TestFaultsAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMonitor(Options{}, Settings{})
	if m.Hardware("GPU-0", time.Hour) {
		t.Error("a fault of nothing")
	}
	now := time.Now()
	for i := range 2 * mostHistories {
		m.blame(Event{Kind: KindIncident, Class: MemoryFault, Severity: Critical, Time: now, Entity: Entity{UUID: string(rune('a' + i))}})
	}
	m.blame(Event{Kind: KindIncident, Class: MemoryFault, Severity: Critical, Time: now}) // nobody knows which GPU
	if n := len(*m.faults.Load()); n != mostHistories {
		t.Errorf("%d GPUs are remembered, want %d", n, mostHistories)
	}
}
