package health

import (
	"slices"
	"time"

	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

const day = 24 * time.Hour

// hostCheck is the check of the kernel's messages about the host.
const hostCheck = "host_kernel"

// named matches incidents of these kinds.
func named(what ...string) func(*incident.Event) bool {
	return func(e *incident.Event) bool { return slices.Contains(what, e.What) }
}

// xids matches XIDs with these codes.
func xids(codes ...int) func(*incident.Event) bool {
	return func(e *incident.Event) bool { return e.What == "xid" && slices.Contains(codes, e.Code) }
}

// severe matches XIDs of at least this severity that the table has or the
// driver calls fatal.
func severe(least incident.Severity) func(*incident.Event) bool {
	return func(e *incident.Event) bool {
		return e.What == incident.WhatXID && !unknownXID(e) && e.Severity >= least && e.Follows == "" &&
			e.Check != "gpu_recovery_action"
	}
}

// fatal matches XIDs of at least this severity that no other check reports.
func fatal(least incident.Severity) func(*incident.Event) bool {
	return func(e *incident.Event) bool { return severe(least)(e) && incident.OwnChecks[e.Code] == "" }
}

// ofOwners is the sentence for byOwners.
const ofOwners = "Programs of {count:owner|owners} had the same XID on {entity} in 24 hours, beyond those on other GPUs."

// tryElsewhere is what to do about an XID of many owners.
const tryElsewhere = "Run one of the programs on another GPU: if the XID follows it, the program is to blame."

// byOwners holds if many owners had an XID on a GPU that programs can cause.
var byOwners = Incidents{Name: "xid_repeat_application", Window: day, Match: applications,
	Count: owners}.Signal().AtLeast(5)

// ofHardware matches faults of a GPU that no process on it caused.
func ofHardware(e *incident.Event) bool { return e.Entity.GPU != "" && isHardware(e) }

// repeats returns the count of the most frequent XID; a burst counts once.
func repeats(events []*incident.Event, _ [][]*incident.Event) float64 {
	bursts, last, most := map[int]float64{}, map[int]time.Time{}, 0.
	for _, e := range events {
		if e.First.Sub(last[e.Code]) > sameBurst {
			bursts[e.Code]++
			most = max(most, bursts[e.Code])
		}
		last[e.Code] = e.First
	}
	return most
}

// sameBurst is the longest time between XIDs of one burst.
const sameBurst = 5 * time.Second

// owners returns the number of workloads' owners that had the same XID, beyond
// twice the median of the host's other GPUs: if all GPUs have them, programs
// are to blame. The frequency for each owner means nothing, because owners can
// cause these XIDs at will. Unknown owners count as one.
func owners(events []*incident.Event, elsewhere [][]*incident.Event) (most float64) {
	for code, here := range ownersOf(events) {
		usual := make([]float64, len(elsewhere))
		for i := range elsewhere {
			usual[i] = float64(len(ownersOf(elsewhere[i])[code]))
		}
		beyond := float64(len(here))
		if len(usual) > 0 {
			beyond -= 2 * derived.Median(usual)
		}
		most = max(most, beyond)
	}
	return most
}

// ownersOf returns the owners that had each XID.
func ownersOf(events []*incident.Event) map[int]map[string]bool {
	had := map[int]map[string]bool{}
	for _, e := range events {
		if had[e.Code] == nil {
			had[e.Code] = map[string]bool{}
		}
		had[e.Code][e.Owner] = true
	}
	return had
}

// onGPUs returns the number of GPUs that had the events.
func onGPUs(events []*incident.Event, _ [][]*incident.Event) float64 {
	gpus := map[incident.Entity]bool{}
	for _, e := range events {
		gpus[e.Entity.Parent()] = true
	}
	return float64(len(gpus))
}

// logged is the sentence for a message of the kernel about a GPU.
const logged = "The kernel logged about {entity} that {event}."

var eventChecks = []*Check{
	{
		ID: "xid_fatal", Alert: "GPUXIDCritical", Class: incident.HardwareFault,
		Levels: []Level{
			{Severity: incident.Critical, When: Incidents{Name: "xid_critical", Window: 5 * time.Minute, Holds: true,
				Match: fatal(incident.Critical)}.Signal().Above(0)},
			{Severity: incident.Emergency, When: Incidents{Name: "xid_fatal", Window: 5 * time.Minute, Holds: true,
				Match: fatal(incident.Emergency)}.Signal().Above(0)},
		},
		Summary: "The GPU had a critical XID error.",
		Detail:  "{entity} had {xids}.",
		Action: "Do what gpusteward status on the host says: it depends on the code. Mostly: end the work on the GPU, and " +
			"reset it.",
		Remedies: true,
		Cause: "health/incident/data/xid.tsv has the meaning of each code, and says which fault only a reset ends. " +
			"For such a fault the alert stays until a reset is seen; for any other it ends after five to ten minutes.",
	},
	{
		ID: "xid_tenant", Alert: "GPUXIDTenantFault", Class: incident.ApplicationFault,
		Levels: []Level{{Severity: incident.Warning, When: Incidents{Name: "xid_tenant", Window: 10 * time.Minute,
			Per: "workload", Match: tenant}.Signal().AtLeast(3)}},
		Summary: "A workload's own faults end its GPU work again and again.",
		Detail:  "{entity} had {count:XID|XIDs} of an application in 10 minutes.",
		Action:  "Tell the owner to check the application (compute-sanitizer); the GPU is healthy.",
		Cause: "XIDs such as 13, 31, 43, 69 and 137 with a process are mostly that program's error: a bad " +
			"address, an illegal instruction. XID 45 alone does not count: Ctrl-C and scancel cause it.",
	},
	{
		ID: "xid_repeat", Alert: "GPUXIDRepeated", Class: incident.HardwareFault,
		Levels: []Level{
			{Severity: incident.Info, When: byOwners, Detail: ofOwners, Action: tryElsewhere},
			{Severity: incident.Warning, When: byOwners.And(Incidents{Name: "xid_repeat_hardware", Window: day,
				Match: ofHardware}.Signal().Above(0)), Detail: ofOwners, Action: tryElsewhere},
			{Severity: incident.Critical, When: Incidents{Name: "xid_repeat", Window: day, Match: hardwares,
				Count: repeats}.Signal().AtLeast(2)},
		},
		Summary: "The same XID came several times on one GPU within a day.",
		Detail:  "{entity} had the same XID {count:time|times} in 24 hours.",
		Action:  "Drain the GPU, and run NVIDIA's field diagnostic.",
		Cause: "A hardware XID that occurs twice is a pattern; a burst counts once. An application can cause some " +
			"XIDs at will. They count by owner (a user, or a namespace of pods), less twice as many as the host's " +
			"other GPUs have: five are info, and a warning if the hardware had a fault of its own on the same GPU. " +
			"A queue of crashing or killed jobs looks the same if other GPUs have other work or none.",
	},
	{
		ID: "xid_spread", Alert: "GPUXIDSoftwarePattern", Class: incident.ApplicationFault,
		Levels: []Level{{Severity: incident.Info, When: Incidents{Name: "xid_spread", Window: day, Node: true,
			Match: xids(13, 31), Count: onGPUs}.Signal().AtLeast(2)}},
		Summary: "XID 13 or 31 came on several GPUs within a day.",
		Detail:  "{count:GPU|GPUs} had XID 13 or 31 in 24 hours.",
		Action:  "Check the application that ran there.",
		Cause:   "If a fault moves from GPU to GPU, its cause is the software, not a GPU.",
	},
	{
		ID: "xid_unknown", Alert: "GPUXIDUnknown", Class: incident.DriverCrash,
		Levels: []Level{{Severity: incident.Warning, When: Incidents{Name: "xid_unknown", Window: 30 * time.Minute,
			Match: unknownXID}.Signal().Above(0)}},
		Summary: "The GPU had an XID that is not in the table.",
		Detail:  "{entity} had {xids}.",
		Action:  "Look the code up in NVIDIA's XID catalogue, and report it so that the table gets it.",
		Cause:   "A newer driver may have codes that this version lacks. Whether the GPU is faulty is unknown.",
	},
	{
		ID: "sxid_fatal", Alert: "NVSwitchSXIDFatal", Class: incident.InterconnectFault,
		Levels: []Level{{Severity: incident.Critical, When: Incidents{Name: "sxid_fatal", Window: 5 * time.Minute, Holds: true,
			Per: "device", Match: saying("sxid_fatal")}.Signal().Above(0)}},
		Summary: "An NVSwitch had a fatal error.",
		Detail:  "The driver reported about NVSwitch {entity}: {event}.",
		Rule:    "NVSwitch {entity} had {count:fatal error|fatal errors}: traffic between its GPUs may fail until a reset.",
		Action:  "Reset the fabric: end all work, reset all GPUs and switches, restart the fabric manager.",
		Cause: "SXids are the XIDs of the NVSwitch driver. Most say whether they are fatal; for the others, " +
			"health/incident/data/sxid.tsv does. A switch that the driver could not start, or gave up, counts as well.",
	},
	{
		ID: "gsp", Alert: "GPUGSPFault", Class: incident.DriverCrash,
		Levels: []Level{{Severity: incident.Critical, When: Incidents{Name: "gsp", Window: 5 * time.Minute, Holds: true,
			Match: saying("gsp")}.Signal().Optional().Above(0).And(
			// xid_fatal reports these.
			Incidents{Name: "gsp_xid", Window: 10 * time.Minute, Holds: true, Whole: true, Match: xids(62, 119, 120)}.Signal().Is(0))}},
		Summary: "The GPU's system processor (GSP) does not answer the driver, and no XID reports it.",
		Detail:  logged,
		Rule:    "The kernel logged {count:fault|faults} of the GSP of {entity}, and the GPU may take no new work.",
		Action: "End the processes that use the GPU and reset it; if that fails, reboot. NVIDIA's release notes say " +
			"which driver has a correction.",
		Cause: "The driver's firmware on the GPU timed out or crashed: calls on the GPU fail or hang from then " +
			"on. Usually XID 119 or 120 accompanies it, and GPUXIDCritical reports that. A kernel message that " +
			"names no GPU is reported for the node.",
	},
	{
		ID: "driver_error", Alert: "GPUDriverError", Class: incident.DriverCrash,
		Levels: []Level{{Severity: incident.Critical, When: Incidents{Name: "driver_error", Window: 5 * time.Minute, Holds: true,
			Match: saying("driver_error")}.Signal().Optional().Above(0)}},
		Summary: "The driver had a fault from which it does not recover, and no XID reports it.",
		Detail:  logged,
		Rule: "The kernel logged {count:fault|faults} of the driver on {entity}, and programs may not be able to " +
			"begin work there.",
		Action: "If the GPU could not be initialised, reset it; if that fails, check its power and its seat. After a " +
			"fault of unified memory, reboot: no CUDA program can start until then.",
		Remedies: true,
		Cause: "The kernel logged that RmInitAdapter failed, that the GPU's firmware is missing, or a fatal error of " +
			"unified memory (nvidia-uvm). If the line follows a GPU off the bus or a GSP fault, only that fault is " +
			"reported. A line that names no GPU is reported for the node.",
	},
	{
		ID: hostCheck, Alert: "HostKernelFault",
		Levels: []Level{{Severity: incident.Warning, When: Incidents{Name: "host_kernel", Window: 30 * time.Minute,
			Node: true, Match: saying(hostCheck)}.Signal().Above(0)}},
		Summary: "The kernel logged a fault of the host that can harm GPU work.",
		Detail:  "The kernel logged that {event}.",
		Rule: "The kernel logged {count:fault|faults} of the host in 30 minutes, and GPU work there may fail or " +
			"stall.",
		Action:   "Read the message; after machine checks and IOMMU faults, inspect the hardware.",
		Remedies: true,
		Cause: "These are uncorrected hardware errors, IOMMU faults, lockups, stalls and errors of the kernel, tasks " +
			"that hang in the driver, network adapters that failed, and the OOM killer if it ended a " +
			"workload on a GPU. Corrected errors, tasks that wait for a disk or a file server, and other victims of " +
			"the OOM killer appear in /api/v1/events, and raise no alert.",
	},
	{
		ID: "gpu_lemon", Alert: "GPULemon", Class: incident.HardwareFault,
		Levels:  []Level{{Severity: incident.Warning, When: Value(derived.LemonScore).Above(5, 4)}},
		Summary: "The GPU had more faults in 30 days than a healthy one has.",
		Detail:  "The faults of {entity} in 30 days {have|had} a score of {value}.",
		Action:  "Drain the GPU, and run NVIDIA's field diagnostic.",
		Cause: "Each hardware fault adds to the score by its severity, and counts for less as days pass. Faults of " +
			"applications add nothing.",
	},
}

// applications matches XIDs that a process can cause.
func applications(e *incident.Event) bool {
	return severe(incident.Info)(e) && incident.XIDs()[e.Code].Tenant()
}

// hardwares matches XIDs that no process can cause, unless they are notices, or
// the driver says that they are not as bad as their code.
func hardwares(e *incident.Event) bool {
	x := incident.XIDs()[e.Code]
	return severe(incident.Warning)(e) && !x.Tenant() && !x.Notice() && e.Severity >= x.Severity
}

// tenant matches XIDs that are a process's own fault.
func tenant(e *incident.Event) bool { return applications(e) && e.PID > 0 && e.Code != endedXID }

// endedXID is what a program has that somebody ends while its kernels run, as by
// Ctrl-C.
const endedXID = 45

// unknownXID matches XIDs that the table does not have, except those that the
// driver calls fatal.
func unknownXID(e *incident.Event) bool {
	_, known := incident.XIDs()[e.Code]
	return e.What == incident.WhatXID && !known && e.Severity < incident.Critical
}

// saying matches incidents that are evidence for a check.
func saying(check string) func(*incident.Event) bool {
	return func(e *incident.Event) bool { return e.Check == check && e.Follows == "" }
}

// either matches the events that one of the functions matches.
func either(all ...func(*incident.Event) bool) func(*incident.Event) bool {
	return func(e *incident.Event) bool {
		return slices.ContainsFunc(all, func(f func(*incident.Event) bool) bool { return f(e) })
	}
}

// recoveryWanted matches the driver's requests for a recovery.
func recoveryWanted(e *incident.Event) bool {
	return either(saying("gpu_recovery_action"), xids(154))(e) && e.Severity >= incident.Critical
}
