package health

import (
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/health/incident"
)

var (
	open    = Value(collectors.DriverUp).Is(1)
	drained = Value(collectors.Drained)
	present = Value(Away).Is(0) // no virtual machine has the GPU
)

// stuck is 1 for a GPU that does not answer, for this reason.
func stuck(reason string) *Signal { return Value(collectors.WorkerStuck, "reason", reason).OrZero() }

// hangs holds while a driver call does not return, and the agent does not lack
// processor time.
var hangs = stuck("nvml.*").Is(1).And(Value(Starved).Is(0))

// recovery is the sentence for the driver's recovery action.
const recovery = "For {entity} the driver {asks|asked} to {recovery}."

// reported is the sentence for an incident of a GPU.
const reported = "The driver or the kernel reported about {entity}: {event}."

var driverChecks = []*Check{
	{
		ID: "gpu_recovery_action", Alert: "GPURecoveryActionRequired", Class: incident.HardwareFault,
		Levels: []Level{
			{Severity: incident.Critical, When: Value(faults.RecoveryAction).Above(0), Detail: recovery},
			{Severity: incident.Critical, When: Incidents{Name: "gpu_recovery_action", Window: 5 * time.Minute, Holds: true,
				Match: recoveryWanted}.Signal().Above(0)},
			{Severity: incident.Emergency, When: Value(faults.RecoveryAction).Is(2), Detail: recovery},
		},
		Summary: "The driver asks for a recovery of the GPU.",
		Detail:  reported,
		Rule: "nvgpu_recovery_action of {entity} is not 0, or the driver asked for a recovery: work on the GPU " +
			"may fail until that is done.",
		Action:   "Do what the driver asks for; gpusteward status on the host says what that is.",
		Remedies: true,
		Cause: "This is the driver's own verdict (field 230, event 0x8000, XID 154). nvgpu_recovery_action is 1 for a GPU " +
			"reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain. The alert stays until a reset is " +
			"seen, or until the driver says that it asks for nothing any more.",
	},
	{
		ID: "gpu_lost", Alert: "GPULost", Class: incident.HardwareFault, Latched: true,
		Levels: []Level{
			// A GPU that is being unbound reports this for a moment.
			{Severity: incident.Emergency, When: stuck("gpu_is_lost").Is(1), For: of(2, 2),
				Detail: "The driver {says|said} that {entity} {is|was} lost."},
			// So does a GPU that is being reset.
			{Severity: incident.Emergency, When: Value(links.PCIDevicePresent, "kind", "gpu").Is(0).
				And(present), For: of(2, 2), Detail: "{entity} {does|did} not answer on the PCI bus."},
			{Severity: incident.Emergency, When: Incidents{Name: "gpu_lost", Window: 5 * time.Minute, Holds: true,
				Match: either(saying("gpu_lost"), xids(79))}.Signal().Above(0)},
		},
		Summary: "The GPU has fallen off the bus.",
		Detail:  reported,
		Rule: "The driver or the kernel reported that {entity} is lost, or the PCI bus gets no answer: its work " +
			"has ended, and no other can begin.",
		Action: "Power-cycle the host; if the GPU is lost again, have the board and the slot checked.",
		Cause: "The driver says that it is lost (gpusteward_worker_stuck), or it does not answer on PCIe " +
			"(nvgpu_pci_device_present), or the kernel logged XID 79 or a message like it.",
	},
	{
		ID: missingCheck, Alert: "GPUMissing", Class: incident.HardwareFault, Accepts: true,
		Levels: []Level{
			{Severity: incident.Emergency, When: stuck("not_listed").Is(1).And(open, present), For: of(3, 3),
				Detail: "The driver {does|did} not list {entity}, which the host had before."},
			{Severity: incident.Emergency, When: Sub(Sub(Value(collectors.DevicesExpected), Value(collectors.Devices)),
				Value(DevicesAway)).Above(0).And(open), For: of(3, 3),
				Detail: "The driver {lists|listed} {count:GPU|GPUs} fewer than expected."},
		},
		Summary: "A GPU that the host should have is missing.",
		Rule: "The driver lists {count:GPU|GPUs} fewer than the host had or should have, and no program can use " +
			"what is not listed.",
		Action: "Reboot; if the GPU stays missing, check its seat and its power. If it was removed for good: " +
			"{ack}.",
		Cause: "The agent remembers the GPUs that it has seen, and collectors.expected_gpus sets their number. A GPU that " +
			"is bound to vfio-pci is not missing: a virtual machine has it.",
	},
	{
		ID: "gpu_absent", Alert: "GPUAbsent", Class: incident.HardwareFault, Accepts: true,
		// GPUs need time after a reload or a return from a virtual machine.
		Levels:  []Level{{Severity: incident.Warning, When: Value(DevicesAbsent).Above(0).And(open), For: of(30, 30)}},
		Summary: "A GPU is missing, and the driver has never listed it on this host.",
		Detail:  "The driver {lists|listed} {count:GPU|GPUs} fewer than the host seems to hold, and never listed more.",
		Action: "Check the seat and the power of each GPU, and the kernel's log for RmInitAdapter and \"not supported\". " +
			"If all are there by design, as with a display card that the driver ignores: {ack}.",
		Cause: "The PCI bus has more GPUs than the driver lists, even with those of virtual machines and other containers. " +
			"Or a place on the baseboard with NVSwitches is empty: NVSwitches are on the bus and the number of GPUs is no power of " +
			"two, or the numbers of the GPUs' modules have a gap. A virtual machine may have any part of a baseboard: " +
			"there, collectors.expected_gpus sets the number of GPUs, and GPUMissing reports that some are missing.",
	},
	{
		ID: "driver_hang", Alert: "GPUDriverHang", Class: incident.DriverCrash,
		Levels: []Level{
			{Severity: incident.Info, When: hangs, For: of(3, 3),
				Action: "Wait for a minute: another tool may hold the driver's lock."},
			{Severity: incident.Critical, When: hangs.And(Incidents{Name: "driver_fault", Window: 5 * time.Minute,
				Match: ofDriver}.Signal().Above(0)), For: of(3, 3)},
			// Another holder of the driver's lock releases it within a minute.
			{Severity: incident.Critical, When: hangs, For: of(7, 7)},
		},
		Summary: "A driver call on the GPU does not return.",
		Detail:  "A call of the driver on {entity} {does|did} not return{labels}.",
		Action:  "End the processes that use the GPU, and reset it; if they do not end, reboot.",
		Cause: "Other GPUs are still read. The alert is info at first, and " +
			"critical after a minute, because another tool holds the driver's lock for less. It is critical at once " +
			"if the driver reported a fault of its own or of the GPU meanwhile.",
	},
	{
		ID: "driver_blocked", Alert: "GPUDriverTasksBlocked", Class: incident.DriverCrash,
		Levels: []Level{{Severity: incident.Critical, When: Value(faults.DriverBlockedTasks).Above(0),
			For: of(13, 13)}},
		Summary: "Tasks of the driver wait in the kernel and cannot be killed.",
		Detail:  "The driver {has|had} had {count:task|tasks} in state D for two minutes.",
		Action:  "Drain the host, and reboot it.",
		Cause:   "These are kernel threads of the driver. Programs that called it do not count: each chooses its own name.",
	},
	{
		ID: "driver_unbound", Alert: "GPUDriverUnbound", Class: incident.DriverCrash,
		Levels: []Level{{Severity: incident.Critical, For: of(7, 7),
			When: Sub(Value(links.PCIDevices, "kind", "gpu"), Value(DevicesAway)).Above(0).
				And(Value(collectors.DriverUp).Is(0), drained.Is(0), Value(collectors.DriverMismatch).Is(0),
					Value(Reloading).Is(0))}},
		Summary: "The host has NVIDIA GPUs and no driver answers for them.",
		Detail:  "No driver {answers|answered} for {count:GPU|GPUs} on the PCI bus.",
		Action:  "Load the driver: modprobe nvidia; /-/ready of the agent describes the failure.",
		Cause: "The driver is not loaded, or it crashed. The alert does not apply if the library does not fit the " +
			"driver (GPUDriverMismatch), while the agent is drained, or while the driver may be reloading: for 10 " +
			"minutes after it was unloaded, or for 3 if it still has the GPUs or they had work until a minute " +
			"before, because an operator ends the work before unloading a driver. GPUs of virtual " +
			"machines do not count.",
	},
	{
		ID: "driver_mismatch", Alert: "GPUDriverMismatch", Class: incident.DriverCrash,
		// An upgrade causes one for a moment.
		Levels:  []Level{{Severity: incident.Critical, When: Value(collectors.DriverMismatch).Is(1), For: of(7, 7)}},
		Summary: "The driver's library and its kernel module are of different versions.",
		Detail:  "No CUDA program {can|could} start, because the versions {differ|differed}{labels}.",
		Action: "Load the module of the installed driver: end the processes that use the GPUs, gpusteward drain, " +
			"modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia, modprobe nvidia; or reboot.",
		Cause: "An upgrade replaced one of them only.",
	},
	{
		ID: driftCheck, Alert: "GPUConfigDrift", Accepts: true,
		// Settings are read each minute, one GPU after the other.
		Levels:  []Level{{Severity: incident.Warning, When: Value(ConfigDrift).Is(1), For: of(13, 13)}},
		Summary: "The settings of the GPU differ from its earlier ones, or from its peers'.",
		Detail:  "{entity} {is|was} not set as expected{labels}.",
		Action:  "Restore the expected value; if the present one is right: {ack}.",
		Cause: "The check compares ECC, persistence, MIG, accounting, compute mode, power limit and VBIOS. A GPU should have " +
			"the settings of most of its peers, except for the compute mode, MIG and a deliberate power limit. A " +
			"change is deliberate if it affects all GPUs of a model, comes with a reset, comes while no workload runs " +
			"on the GPU, or restores the value from before. Under a workload, a change alerts within minutes if no job " +
			"came or went on the host for an hour. Otherwise it alerts after four hours, because a prolog may have " +
			"made it for a job beside that workload, and the epilog undoes it. A requested power limit is deliberate " +
			"if no job came or went, or if it is older than the agent; the board or the chassis lowers a limit below " +
			"the requested one. If persistence mode was on and is off on all GPUs, nvidia-persistenced is down, or " +
			"did not come back within five minutes after the driver was reloaded, and the alert is for the node.",
	},
	{
		ID: "inforom", Alert: "GPUInfoROMCorrupt", Class: incident.HardwareFault,
		Levels:  []Level{{Severity: incident.Warning, When: Value(faults.InforomValid).Is(0)}},
		Summary: "The checksum of the GPU's InfoROM is wrong.",
		Detail:  "The driver {says|said} that the InfoROM of {entity} {is|was} not valid.",
		Action: "Drain the GPU, and have the board checked by its vendor: nvidia-smi prints \"infoROM is corrupted\" " +
			"until the board is repaired or replaced.",
		Cause: "The InfoROM has the board's settings and its counts of errors: ECC, retired pages and limits may be " +
			"wrong or lost. The agent reads the checksum once after the driver was loaded.",
	},
	{
		ID: "stale", Alert: "MetricsStale",
		// A starved agent is not recognised on a host with one GPU; that mostly
		// ends within a minute.
		Levels: []Level{{Severity: incident.Warning, When: stuck("late").Is(1).
			And(Value(Starved).Is(0)), For: of(7, 7)}},
		Summary: "The GPU's data is old, and no driver call explains it.",
		Detail:  "The agent {has|had} read nothing new of {entity} for a minute.",
		Action:  "Look at the agent's log; if it says nothing, see whether the host is overloaded.",
		Cause: "Until the GPU is read again, its state is unknown, and unknown is not healthy. If the data of all GPUs is " +
			"old at once, the agent gets no processor time, and AgentDegraded reports that.",
	},
}

// ofDriver matches the driver's reports of its own faults, or of a failing GPU.
func ofDriver(e *incident.Event) bool {
	return e.Kind == incident.KindIncident && e.Follows == "" && e.Severity >= incident.Critical && isHardware(e)
}
