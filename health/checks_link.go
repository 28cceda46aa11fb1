package health

import (
	"time"

	"gpusteward/collectors/links"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// aer is the increase of the kernel's AER counters of a severity.
func aer(severity string, window time.Duration) *Signal {
	return Increase(links.PCIeAERErrors, window, "severity", severity)
}

// fatalOfGPU matches messages about fatal PCIe errors of a GPU.
func fatalOfGPU(e *incident.Event) bool {
	return e.What == "aer_fatal" && e.Entity.UUID != "" && e.Follows == ""
}

// unlikeSiblings holds if a link is far from the GPU's others.
func unlikeSiblings(signal string) Condition {
	return Value(derived.PeerLinkDeviationRatio, "signal", signal, "by", "link").Optional().AtLeast(1, .5).
		And(Value(derived.PeerLinkZScore, "signal", signal, "by", "link").AtLeast(5))
}

// lostLinks holds if links that were up are down, and do not train.
var lostLinks = Fell(links.NVLinkUp, "by", "link").Above(0).And(Value(Settling).Is(0))

var linkChecks = []*Check{
	{
		ID: "pcie_replay", Alert: "GPUPCIeReplay", Class: incident.InterconnectFault,
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.PCIeReplayExcess).Optional().Above(1, .5),
			For: of(3, 5).every(time.Minute)}},
		Summary: "PCIe packets are sent again more often than the link's error rate allows.",
		Detail:  "{entity} {sends|sent} {count:time|times} as many packets again as a bit error ratio of 1e-12 explains.",
		Action:  "Reseat the board or the riser; check the retimers.",
		Cause:   "Some replays are normal: how many depends on the link's generation and width.",
	},
	{
		ID: "pcie_degraded", Alert: "GPUPCIeDegraded", Class: incident.InterconnectFault, Accepts: true,
		Levels:  linkLevels(),
		Summary: "The PCIe link of a busy GPU is slower or narrower than its slot.",
		Action:  "Reseat the board; reset the GPU. If the slot is made that way: {ack}.",
		Cause: "The alert is critical if the link had more before on this host, and a warning if it never had. There is no " +
			"warning if the port above the GPU has no more lanes (nvgpu_pci_port_lanes). A GPU that is idle, or works in " +
			"a performance state from P3 on, lowers the generation to save power, and is not judged. Nor is a GPU in the " +
			"package of a processor, such as GB10, that is in no slot. For a GPU that works little, or now and then, the " +
			"last twelve looks during its work count: nvgpu_pcie_link_shortfall.",
	},
	{
		ID: "pcie_aer", Alert: "GPUPCIeErrors", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Critical, When: aer("fatal", 5*time.Minute).Above(0),
				Detail: "{entity} had {count:fatal PCIe error|fatal PCIe errors} in 5 minutes.",
				Rule:   "{entity} had {count:fatal PCIe error|fatal PCIe errors} in 5 minutes."},
			// The kernel need not count what the firmware or a port contains.
			{Severity: incident.Critical, When: Incidents{Name: "pcie_fatal", Window: 5 * time.Minute,
				Match: fatalOfGPU}.Signal().Above(0), Detail: logged},
			{Severity: incident.Warning, When: aer("nonfatal", 5*time.Minute).Above(0),
				Detail: "{entity} had {count:uncorrected PCIe error|uncorrected PCIe errors} in 5 minutes.",
				Rule:   "{entity} had PCIe errors that were not corrected, or corrected ones by the hundred a minute."},
			{Severity: incident.Info, When: aer("correctable", time.Hour).Above(600, 300),
				Detail: "{entity} had {count:corrected PCIe error|corrected PCIe errors} in an hour.",
				Rule: "{entity} had more than 600 corrected PCIe errors in an hour, or a lasting rise of their rate: no data " +
					"was lost."},
			{Severity: incident.Warning, When: aer("correctable", time.Hour).Above(20000, 10000),
				Detail: "{entity} had {count:corrected PCIe error|corrected PCIe errors} in an hour."},
			// A burst, as of a training link, is over sooner.
			{Severity: incident.Warning, When: aer("correctable", 2*time.Minute).Above(200, 100),
				For:    of(8, 10).every(time.Minute),
				Detail: "{entity} {has|had} more than a hundred corrected PCIe errors a minute."},
			{Severity: incident.Info, When: Value(derived.PCIeCorrectableCUSUM).Above(5, 2),
				Detail: "{entity} {has|had} more corrected PCIe errors than its own past explains."},
		},
		Summary: "The PCIe bus reports errors of the GPU.",
		Action:  "Reseat the board or the riser; check the retimers.",
		Cause: "The kernel counts these errors (AER), or logs that a port contained one (DPC). Corrected ones lose no " +
			"data: more than one in six seconds, or more than the link's own past explains, is worth knowing. More than " +
			"a hundred a minute in most of ten minutes are a warning, and so are 20000 in an hour: the link is busy " +
			"with corrections, and uncorrected errors will follow.",
	},
	{
		ID: "nvlink_down", Alert: "NVLinkDown", Class: incident.InterconnectFault, Accepts: true,
		Levels: []Level{
			{Severity: incident.Critical, When: lostLinks, For: of(3, 3)},
			// A link that comes back each time. One that trains anew once is back after
			// two samples.
			{Severity: incident.Warning, When: lostLinks, For: of(3, 60),
				Detail: "{entity}: NVLinks {are|were} down again and again, at three looks or more in ten minutes."},
		},
		Summary: "An NVLink that was up is down, or goes down again and again.",
		Detail:  "{entity}: {count:NVLink|NVLinks} down, and up before.",
		Action: "Reset the GPUs at both ends; if the link stays down, inspect the bridge or the baseboard. If it was " +
			"removed for good: {ack}.",
		Cause: "Jobs continue over PCIe, many times slower, or fail. Links that were never up, as on a GPU without a " +
			"bridge, are no fault. Neither are links that train in the first five minutes after the host was booted, " +
			"the driver was reloaded or the GPU was reset. A link that comes back within half a minute each time is " +
			"a warning at the third time in ten minutes.",
	},
	{
		ID: "nvlink_missing", Alert: "NVLinkMissing", Class: incident.InterconnectFault,
		Levels: []Level{{Severity: incident.Critical, When: Value(derived.PeerLinksMissing, "by", "link").Optional().
			Above(0).And(Fell(links.NVLinkUp, "by", "link").Is(0)),
			For: of(18, 18)}}, // links train for a minute or two after the driver is loaded
		Summary: "An NVLink of the GPU has been down since the start, and the same link of its peers is up.",
		Detail:  "{entity}: {count:NVLink|NVLinks} down, and up on most GPUs of its model on this host.",
		Action:  "Reset the GPUs at both ends; if the link stays down, inspect the baseboard.",
		Cause: "It did not train when the host was booted. Only a comparison shows that, which needs four GPUs of the " +
			"model, of which more than two thirds agree. A GPU without any link up has no bridge, and raises no alert.",
	},
	{
		ID: "nvlink_slow", Alert: "NVLinkSlow", Class: incident.InterconnectFault,
		// One of 36 links at half its speed lowers the mean by .014.
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.PeerLinkSpeedRatio, "by", "link").
			Optional().Below(.99, .995),
			For: of(18, 18)}}, // as above
		Summary: "An NVLink is up, but slower than those of the GPU's peers.",
		Detail:  "{entity}: NVLinks {run|ran} at {percent} of the speed of the fastest ones of the GPU's model.",
		Action:  "Reset the GPUs at both ends; collectors.per_link shows which link it is.",
		Cause: "The link trained at a lower rate or with fewer lanes. The links of one model run at one speed, and a " +
			"collective is as slow as the slowest of them.",
	},
	{
		ID: "nvlink_unstable", Alert: "NVLinkUnstable", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Warning, When: Increase(links.NVLinkErrors, 2*time.Minute,
				"type", "replay|recovery", "by", "link").Above(0), For: of(16, 60).every(time.Minute)},
			// NVLink 5
			{Severity: incident.Warning, When: Increase(links.NVLinkRecoveries, 2*time.Minute, "by", "link").
				Above(0), For: of(16, 60).every(time.Minute)},
			// Healthy links have a few a day.
			{Severity: incident.Warning, When: Increase(links.NVLinkErrors, 2*time.Minute, "type", "crc",
				"by", "link").Above(20, 10), For: of(16, 60).every(time.Minute),
				Detail: "{entity} had {count:corrupted packet|corrupted packets} in 2 minutes."},
		},
		Summary: "An NVLink had errors in at least a quarter of the last hour's minutes.",
		Detail:  "{entity} had {count:replay or recovery|replays and recoveries} in 2 minutes.",
		Rule:    "{entity} had replays, recoveries or corrupted packets in a quarter of the last hour's minutes.",
		Action:  "Reset the GPU; reseat it if that does not help.",
		Cause:   "A few errors over a link's life are normal. Corrupted packets (CRC) count only from ten a minute.",
	},
	{
		ID: "nvlink_outlier", Alert: "NVLinkOutlier", Class: incident.InterconnectFault, Shadow: true,
		Levels: []Level{
			{Severity: incident.Warning, When: unlikeSiblings("errors"), For: of(9, 10).every(time.Minute)},
			{Severity: incident.Warning, When: unlikeSiblings("bytes"), For: of(9, 10).every(time.Minute),
				Detail: "The traffic of {entity} {exceeds|exceeded} that of its siblings by {percent}."},
		},
		Summary: "An NVLink has far more errors or traffic than its siblings.",
		Detail:  "The errors of {entity} {exceed|exceeded} those of its siblings by {percent}.",
		Rule:    "The errors or the traffic of {entity} exceed those of its siblings by {percent}.",
		Action:  "Check what is at the other end.",
		Cause:   "Each link is compared with the other links of its GPU. The check needs collectors.per_link: true.",
	},
	{
		ID: "nvlink_gpu_outlier", Alert: "NVLinkGPUOutlier", Class: incident.InterconnectFault, Shadow: true,
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.PeerDeviationRatio, "signal", "nvlink_errors").
			Optional().AtLeast(1, .5).And(Value(derived.PeerZScore, "signal", "nvlink_errors").AtLeast(5)),
			For: of(9, 10).every(time.Minute)}},
		Summary: "The NVLinks of one GPU have far more errors than its peers'.",
		Detail:  "The errors of {entity} {exceed|exceeded} those of its peers by {percent}.",
		Action:  "Look at each link: collectors.per_link shows which ones have errors.",
		Cause:   "The sum over the GPU's links is compared with that of GPUs of the same model on this host.",
	},
	{
		ID: "nvlink_ber", Alert: "NVLinkBER", Class: incident.InterconnectFault,
		Levels: []Level{{Severity: incident.Critical, When: Value(links.NVLinkBER, "kind", "effective",
			"by", "link").Above(1e-12), For: of(3, 3)}},
		Summary: "The bit error ratio of an NVLink is too high.",
		Detail:  "{entity} {has|had} an effective bit error ratio of {value}.",
		Action:  "Check the link's signal: cable, connector, the other end.",
		Cause: "These are the errors that error correction leaves (NVLink 5). The check needs the collector " +
			"nvlink_quality (collectors.enable).",
	},
	{
		ID: "fabric_state", Alert: "GPUFabricUnhealthy", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Critical, When: Value(links.FabricHealth, "check", "registration|degraded_bw|"+
				"route_recovery|route_unhealthy|access_timeout_recovery|incorrect_configuration|unhealthy|limited_capacity").
				Is(1), For: of(3, 3)},
			{Severity: incident.Critical, When: Value(links.FabricState, "state", "not_started|in_progress").
				Is(1), For: of(30, 30), Detail: "{entity} {has|had} not joined its NVLink fabric within five minutes{labels}."},
		},
		Summary: "The GPU is unhealthy in its NVLink fabric.",
		Detail:  "The fabric {reports|reported} a fault of {entity}{labels}.",
		Rule:    "{entity} has not joined its NVLink fabric within five minutes, or the fabric reports a fault of it.",
		Action:  "Look at the fabric manager: systemctl status nvidia-fabricmanager.",
		Cause:   "Without the fabric, CUDA does not start on GPUs behind NVSwitches.",
	},
	{
		ID: "c2c_link", Alert: "GPUC2CLinkDown", Class: incident.InterconnectFault,
		Levels:  []Level{{Severity: incident.Critical, When: Fell(links.C2CUp, "by", "link").Above(0), For: of(3, 3)}},
		Summary: "A link between the GPU and its Grace CPU is down.",
		Detail:  "{entity} {is|was} down, and {was|had been} up before.",
		Action:  "Drain the host, and power-cycle it; if the fault returns, have the superchip replaced.",
		Cause: "Copies to and from the host's memory slow down, or fail. The links are soldered: neither a cable nor a " +
			"reset of the GPU is the remedy.",
	},
	{
		ID: "ib_port", Alert: "IBPortDown", Class: incident.InterconnectFault, Accepts: true,
		Levels: []Level{{Severity: incident.Critical, When: Fell(links.IBPortUp, "by", "device").
			Above(0).And(Value(Booting).Is(0)), For: of(3, 3)}},
		Summary: "An InfiniBand port that was up is down.",
		Detail:  "Port {entity} {is|was} not active.",
		Action:  "Check the cable and the switch's port. If it was disconnected for good: {ack}.",
		Cause: "Jobs over several nodes fail or slow down. A port that was never up raises no alert. After a boot, a " +
			"port has five minutes to come up.",
	},
	{
		ID: "ib_port_flap", Alert: "IBPortFlap", Class: incident.InterconnectFault,
		Levels: []Level{{Severity: incident.Warning, When: Increase(links.IBPortDowned, 12*time.Hour,
			"by", "device").AtLeast(3)}},
		Summary: "An InfiniBand port goes down again and again.",
		Detail:  "Port {entity} went down {count:time|times} in 12 hours.",
		Action:  "Change the cable.",
		Cause:   "The port itself counts (link_downed).",
	},
}
