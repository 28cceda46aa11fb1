package health

import (
	"maps"
	"slices"
	"time"

	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// hardwareChecks are the checks that find a failed GPU or driver by readings,
// not by incidents.
var hardwareChecks = []string{incident.RecoveryCheck, "gpu_lost", "driver_hang", "ecc_uncorrectable", "sram_threshold"}

// HardwareChecks returns all checks that Hardware depends on.
func HardwareChecks() []*Check {
	return slices.DeleteFunc(Checks(), func(c *Check) bool { return !slices.Contains(hardwareChecks, c.ID) })
}

// Hardware reports whether the GPU with the UUID had a fault of its hardware or
// driver within the time until now: an XID that the catalogue does not blame on
// a process, an uncorrectable error, or a GPU that fell off the bus or asks for
// a recovery. A workload that was on the GPU then is not to blame for its
// behaviour. Hardware is safe for concurrent use and never waits.
func (m *Monitor) Hardware(uuid string, since time.Duration) bool {
	faults := m.faults.Load()
	if faults == nil {
		return false
	}
	at, ok := (*faults)[uuid]
	return ok && time.Since(at) <= since
}

// isHardware reports whether an event blames the GPU, and no process on it.
func isHardware(e *incident.Event) bool {
	switch {
	case e.Kind == incident.KindTransition:
		return e.Severity >= incident.Warning && e.To == e.Severity.State() && slices.Contains(hardwareChecks, e.Check)
	case e.Kind != incident.KindIncident || e.Follows != "":
		return false
	case e.What == incident.WhatXID && e.Code == incident.RecoveryXID:
		return e.Severity >= incident.Critical // below that, the driver asks for nothing more
	case e.What == incident.WhatXID:
		x, known := incident.XIDs()[e.Code]
		return x.Hardware() || !known && e.Severity >= incident.Critical // the driver calls it fatal
	}
	return e.Severity >= incident.Warning && e.Class != "" && e.Class != incident.ApplicationFault
}

// blame records the faults of the hardware among events.
func (m *Monitor) blame(events ...incident.Event) {
	var all map[string]time.Time // mostly nil
	for i := range events {
		e := &events[i]
		if e.Entity.UUID == "" || !isHardware(e) {
			continue
		}
		if all == nil {
			all = map[string]time.Time{}
			if before := m.faults.Load(); before != nil {
				maps.Copy(all, *before)
			}
		}
		at := e.Last
		if at.IsZero() {
			at = e.Time
		}
		if (len(all) < derived.MostGPUs || !all[e.Entity.UUID].IsZero()) && at.After(all[e.Entity.UUID]) {
			all[e.Entity.UUID] = at
		}
	}
	if all != nil {
		m.faults.Store(&all)
	}
}
