package health

import (
	"time"

	"gpusteward/collectors/faults"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// uncorrected are the uncorrectable ECC errors since the driver was loaded.
var uncorrected = Increase(faults.ECCErrors, 5*time.Minute, "severity", "uncorrected", "scope", "volatile").
	Lifetime()

// newRows are the rows that were replaced after uncorrectable errors in the
// last week.
var newRows = Increase(faults.RemappedRows, 7*24*time.Hour, "cause", "uncorrectable", "state", "active").Lifetime()

// onIts is the sentence for an event of the driver.
const onIts = "On {entity}, {event}."

var memoryChecks = []*Check{
	{
		ID: "ecc_uncorrectable", Alert: "GPUECCUncorrectable", Class: incident.MemoryFault,
		// The action waits for the work to end; urgent faults have an XID.
		Levels:  []Level{{Severity: incident.Warning, When: uncorrected.Above(0)}},
		Summary: "GPU memory had an uncorrectable ECC error.",
		Detail:  "{entity} had {count:uncorrectable ECC error|uncorrectable ECC errors} in 5 minutes.",
		Action:  "Reset the GPU when its work has ended; rows are replaced at the reset.",
		Cause: "Data was lost: the job that used it got XID 48 or 94 (contained), or 95 (the GPU is unusable until a " +
			"reset). One error in a board's life is no reason to replace it; see GPURowRemapFailed and " +
			"GPURowRemapSpareLow.",
	},
	{
		ID: "ecc_correctable_rate", Alert: "GPUECCCorrectableRate", Class: incident.MemoryFault,
		// A burst has left the hour by then.
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.ECCCorrectablePerHour).Above(100, 50).
			And(Value(derived.ECCCorrectableCUSUM).Above(5)), For: of(8, 8).every(10 * time.Minute)}},
		Summary: "GPU memory has far more corrected ECC errors than it used to.",
		Detail:  "{entity} {has|had} {count:corrected ECC error|corrected ECC errors} an hour.",
		Action:  "Plan a reset of the GPU, so that the rows are replaced.",
		Cause: "Corrected errors lose no data. A lasting rise announces rows that will fail; a burst within an hour " +
			"means nothing.",
	},
	{
		ID: "ecc_storm", Alert: "GPUECCStorm", Class: incident.MemoryFault,
		Levels: []Level{{Severity: incident.Warning, When: Incidents{Name: "ecc_storm", Window: 10 * time.Minute,
			Match: saying("ecc_storm")}.Signal().Above(0)}},
		Summary: "The GPU corrects ECC errors faster than the driver counts them.",
		Detail:  onIts,
		Rule: "The driver reported {count:storm|storms} of ECC errors on {entity} in 10 minutes: rows of its " +
			"memory may be failing.",
		Action: "Reset the GPU in the next maintenance window.",
		Cause:  "The driver reports this by NVML's event 0x200. No data is lost, but rows will fail.",
	},
	{
		ID: "sram_threshold", Alert: "GPUSRAMThreshold", Class: incident.MemoryFault, Latched: true,
		Levels:  []Level{{Severity: incident.Critical, When: Value(faults.SRAMThreshold).Is(1)}},
		Summary: "Uncorrectable SRAM errors passed the limit for replacement.",
		Detail:  "{entity} {has|had} more uncorrectable SRAM errors than the driver allows a board.",
		Action:  "Take the GPU out of service, run NVIDIA's field diagnostic, and have it replaced.",
		Cause:   "SRAM has no spare rows: the driver's own limit says that the board should be replaced.",
	},
	{
		ID: "sram_unique_unc", Alert: "GPUSRAMUniqueErrors", Class: incident.MemoryFault,
		Levels:  []Level{{Severity: incident.Critical, When: Value(faults.SRAMAddresses).AtLeast(4)}},
		Summary: "Uncorrectable SRAM errors happened at several addresses.",
		Detail:  "{entity} had uncorrectable SRAM errors at {count:address|addresses}.",
		Action:  "Have the board reviewed for replacement.",
		Cause: "Errors at four or more addresses do not come from one weak cell. The check needs the collector " +
			"sram_addresses (collectors.enable).",
	},
	{
		ID: "poison", Alert: "GPUPoison", Class: incident.MemoryFault,
		Levels: []Level{
			{Severity: incident.Warning, When: Incidents{Name: "poison", Window: 5 * time.Minute, Holds: true,
				Match: named("poison_nonfatal", "poison_fatal")}.Signal().Above(0), Action: "Restart the application that failed.",
				Rule: "{entity} met poisoned data {count:time|times}: programs that used it are ended."},
			{Severity: incident.Critical, When: Incidents{Name: "poison_fatal", Window: 5 * time.Minute, Holds: true,
				Match: named("poison_fatal")}.Signal().Above(0),
				Rule: "{entity} met poisoned data {count:time|times}, and the driver calls that fatal."},
		},
		Summary: "The GPU met poisoned data.",
		Detail:  onIts,
		Action:  "End the work on the GPU, and reset it.",
		Cause: "Data that ECC could not correct is marked as poison; a program that uses it is ended (NVML events " +
			"0x1000 and 0x2000).",
	},
	{
		ID: "remap_pending", Alert: "GPURowRemapPending", Class: incident.MemoryFault,
		Levels: []Level{
			{Severity: incident.Info, When: Value(faults.RowRemapPending).Above(0)},
			{Severity: incident.Warning, When: Value(faults.RowRemapPending).Above(0),
				For: of(25, 25).every(time.Hour), Detail: "{entity} {has|had} needed a reset for a day, to replace a failed row."},
		},
		Summary: "Rows of GPU memory wait for a reset to be replaced.",
		Detail:  "{entity} {needs|needed} a reset, at which a spare row replaces a failed one.",
		Action:  "Reset the GPU when it is idle.",
		Cause:   "Until then the row is not used: programs run on without it. The alert becomes a warning after a day.",
	},
	{
		ID: "remap_failed", Alert: "GPURowRemapFailed", Class: incident.MemoryFault, Latched: true,
		Levels: []Level{
			{Severity: incident.Emergency, When: Value(faults.RowRemapFailure).Above(0),
				Detail: "The driver {says|said} that {entity} failed to replace a row."},
			{Severity: incident.Emergency, When: Incidents{Name: "remap_failed", Window: 5 * time.Minute, Holds: true,
				Match: either(saying("remap_failed"), xids(64))}.Signal().Above(0)},
		},
		Summary: "A row of GPU memory could not be replaced.",
		Detail:  reported,
		Rule:    "The driver reported that {entity} could not replace a row of memory that failed.",
		Action:  "Take the GPU out of service and have it replaced.",
		Cause:   "No spare row is left where one is needed: nvgpu_row_remap_failure or XID 64 says so.",
	},
	{
		ID: "remap_spare", Alert: "GPURowRemapSpareLow", Class: incident.MemoryFault,
		Levels: []Level{
			{Severity: incident.Warning, When: Sum(faults.RowRemapBanks, "availability", "low|none").AtLeast(1)},
			{Severity: incident.Critical, When: Value(faults.RowRemapBanks, "availability", "none").Above(0),
				Detail: "{entity} {has|had} {count:bank|banks} without a spare row."},
		},
		Summary: "Banks of GPU memory run out of spare rows.",
		Detail:  "{entity} {has|had} {count:bank|banks} with few spare rows or none.",
		Action:  "Plan the replacement of the board.",
		Cause:   "A bank begins with eight at most. With none left, the next failure is GPURowRemapFailed.",
	},
	{
		ID: "remap_count", Alert: "GPURowRemapCount", Class: incident.MemoryFault,
		Levels: []Level{
			{Severity: incident.Warning, When: Value(faults.RemappedRows, "cause", "uncorrectable",
				"state", "active").AtLeast(512)},
			{Severity: incident.Warning, When: newRows.Above(4),
				Detail: "{entity} had {count:row|rows} replaced within a week after uncorrectable errors."},
			{Severity: incident.Info, When: Incidents{Name: "remap_count", Window: day, Match: xids(63),
				Count: repeats}.Signal().AtLeast(3),
				Detail: "{entity} had rows of memory replaced {count:time|times} in 24 hours."},
		},
		Summary: "Many rows of GPU memory were replaced.",
		Detail:  "{entity} had {count:row|rows} replaced after uncorrectable errors.",
		Rule:    "{entity} had {count:row|rows} replaced after uncorrectable errors, in its life or within a week.",
		Action:  "Plan the replacement of the board.",
		Cause: "512 rows are the board's limit. More than four rows in a week are a trend, and three replacements in " +
			"a day (XID 63) may be the beginning of one.",
	},
	{
		ID: "retired_pages", Alert: "GPURetiredPages", Class: incident.MemoryFault,
		Levels: []Level{
			{Severity: incident.Critical, When: Sum(faults.RetiredPages, "cause", "single_bit|double_bit").
				AtLeast(63)},
			{Severity: incident.Critical, When: Increase(faults.RetiredPages, 7*24*time.Hour,
				"cause", "double_bit").Lifetime().Above(1).
				And(Value(faults.RetiredPages, "cause", "double_bit").Above(15)),
				Detail: "{entity} retired {count:page|pages} within a week after double-bit errors, and more than 15 in all."},
		},
		Summary: "The GPU retired so many pages of memory that it should be replaced.",
		Detail:  "{entity} retired {count:page|pages}.",
		Rule:    "{entity} retired {count:page|pages}, nearly as many as it can, or many of them within a week.",
		Action:  "Have the board replaced.",
		Cause:   "GPUs before Ampere retire pages, 64 at most.",
	},
	{
		ID: "orphan_memory", Alert: "GPUOrphanMemory", Class: incident.DriverCrash,
		Levels:  []Level{{Severity: incident.Warning, When: Value(OrphanMemory).Above(500 << 20), For: of(6, 6)}},
		Summary: "GPU memory is in use, but no process uses it.",
		Detail:  "{entity} {has|had} {bytes} in use that {belong|belonged} to no process{labels}.",
		Action:  "Look for a process in another PID namespace; if there is none, reset the GPU.",
		Cause: "A program that was killed within a driver call may leave it behind. GPUs whose memory is a NUMA " +
			"node of the host (such as GH200) are not judged, because the kernel stores its own data there.",
	},
	{
		ID: "ghost_process", Alert: "GPUGhostProcess", Class: incident.DriverCrash,
		// As orphan_memory; a process is still listed for a moment after its
		// end.
		Levels: []Level{{Severity: incident.Warning, When: Value(workloads.UnknownMemory).OrZero().
			Above(500 << 20), For: of(6, 6)}},
		Summary: "The driver lists a process with GPU memory that the kernel does not know.",
		Detail:  "{entity} {has|had} {bytes} in use by a process that {is|was} gone{labels}.",
		Action:  "Reset the GPU when its other work has ended.",
		Cause: "The process has ended, but the driver did not release its memory, and nobody can end the process any " +
			"more. In a PID namespace of its own (a container without hostPID), the agent cannot detect this.",
	},
}
