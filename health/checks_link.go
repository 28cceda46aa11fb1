package health

import (
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// aer is by how much the kernel's AER counters of a severity rose.
func aer(severity string, window time.Duration) *Signal {
	return Increase(collectors.PCIeAERErrors, window, "severity", severity)
}

func belowMax(m *collectors.Metric) *Signal {
	return Sub(Value(m, "kind", "max"), Value(m, "kind", "current"))
}

// unlikeSiblings holds where a link is far from the GPU's others.
func unlikeSiblings(signal string) Condition {
	return Value(derived.PeerLinkDeviationRatio, "signal", signal, "by", "link").Optional().AtLeast(1, .5).And(Value(derived.PeerLinkZScore, "signal", signal, "by", "link").AtLeast(5))
}

// lostLinks is that links are down that were up, and do not train.
var lostLinks = Fell(collectors.NVLinkUp, "by", "link").Above(0).And(Value(Settling).Is(0))

var linkChecks = []*Check{
	{
		ID: "pcie_replay", Alert: "GPUPCIeReplay", Class: incident.InterconnectFault,
		Levels:  []Level{{Severity: incident.Warning, When: Value(derived.PCIeReplayExcess).Optional().Above(1, .5), For: of(3, 5).every(time.Minute)}},
		Summary: "PCIe packets are sent again more often than the link's error rate allows.",
		Detail:  "{entity} sends {value} times as many packets again as a bit error ratio of 1e-12 explains.",
		Action:  "Reseat the board or the riser; check the retimers.",
		Cause:   "Some replays are normal: how many depends on the link's generation and width.",
	},
	{
		ID: "pcie_degraded", Alert: "GPUPCIeDegraded", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Critical, When: belowMax(collectors.PCIeGeneration).Above(0).And(gpuBusy.Above(.10)), For: of(6, 6)},
			{Severity: incident.Critical, When: belowMax(collectors.PCIeWidth).Above(0).And(gpuBusy.Above(.10)), For: of(6, 6)},
			{Severity: incident.Critical, When: Value(derived.PCIeShortfall).Optional().Above(0)}, // the derivation asks for twelve looks
		},
		Summary: "The PCIe link of a busy GPU is slower or narrower than its slot.",
		Action:  "Reseat the board; reset the GPU.",
		Cause:   "An idle GPU lowers its link to save power; a busy one does not. Of a GPU that works little, or now and then, the last twelve looks at it while it worked count: nvgpu_pcie_link_shortfall.",
	},
	{
		ID: "pcie_aer", Alert: "GPUPCIeErrors", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Critical, When: aer("fatal", 5*time.Minute).Above(0)},
			{Severity: incident.Warning, When: aer("nonfatal", 5*time.Minute).Above(0)},
			{Severity: incident.Info, When: aer("correctable", time.Hour).Above(600, 300)},
			{Severity: incident.Warning, When: aer("correctable", 2*time.Minute).Above(200, 100), For: of(8, 10).every(time.Minute), // a burst, as of a link that trains, is over sooner
				Detail: "{entity} has hundreds of corrected PCIe errors a minute."},
			{Severity: incident.Info, When: Value(derived.PCIeCorrectableCUSUM).Above(5, 2), Detail: "{entity} has more corrected PCIe errors than its own past explains."},
		},
		Summary: "The PCIe bus reports errors of the GPU.",
		Detail:  "{entity} had {value} PCIe errors.",
		Action:  "Reseat the board or the riser; check the retimers.",
		Cause:   "Counted by the kernel (AER). Corrected ones lose nothing: more than one in six seconds, or more than the link's own past explains, is worth knowing. A warning of more than a hundred a minute in most of ten minutes: the link spends its time on them, and uncorrected ones are next.",
	},
	{
		ID: "nvlink_down", Alert: "NVLinkDown", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Critical, When: lostLinks, For: of(3, 3)},
			{Severity: incident.Warning, When: lostLinks, For: of(4, 30)}, // one that comes back each time
		},
		Summary: "An NVLink that was up is down, or goes down again and again.",
		Detail:  "{entity} has {value} NVLinks fewer than it had in this boot.",
		Action:  "Reset the GPUs at both of its ends; if it stays down, look at the baseboard.",
		Cause:   "Jobs go on over PCIe, many times slower, or fail. Links that were never up, as on a GPU without a bridge, are no fault. Nor are those that train for the first five minutes after the host was booted, the driver was loaded anew or the GPU was reset. A warning where a link comes back each time within half a minute: each time the job on it waits, or fails.",
	},
	{
		ID: "nvlink_missing", Alert: "NVLinkMissing", Class: incident.InterconnectFault,
		Levels: []Level{{Severity: incident.Critical, When: Value(derived.PeerLinksMissing, "by", "link").Optional().Above(0).And(Fell(collectors.NVLinkUp, "by", "link").Is(0)),
			For: of(18, 18)}}, // links train for a minute or two after the driver is loaded
		Summary: "An NVLink of the GPU was down from the start, and its peers have it up.",
		Detail:  "{entity} has {value} NVLinks fewer up than most GPUs of its model on this host.",
		Action:  "Reset the GPUs at both of its ends; if it stays down, look at the baseboard.",
		Cause:   "A link that did not train when the host was booted was never up, so that nothing falls: what its peers have shows it. Needs four GPUs of the model, of which more than two thirds agree. A GPU without any link that is up has no bridge.",
	},
	{
		ID: "nvlink_slow", Alert: "NVLinkSlow", Class: incident.InterconnectFault,
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.PeerLinkSpeedRatio, "by", "link").Optional().Below(.99, .995), // one of 36 links at half its speed takes .014 from the mean
			For: of(18, 18)}}, // as above
		Summary: "An NVLink is up and slower than those of the GPU's peers.",
		Detail:  "{entity}: NVLinks run at {percent} of the speed that the fastest of the GPU's model have.",
		Action:  "Reset the GPUs at both of its ends; collectors.per_link shows which link it is.",
		Cause:   "A link that trained at a lower rate or with fewer lanes. Links of one model run at one speed; a collective is as slow as the slowest of them.",
	},
	{
		ID: "nvlink_unstable", Alert: "NVLinkUnstable", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Warning, When: Increase(collectors.NVLinkErrors, 2*time.Minute, "type", "replay|recovery", "by", "link").Above(0), For: of(16, 30).every(time.Minute)},
			{Severity: incident.Warning, When: Increase(collectors.NVLinkRecoveries, 2*time.Minute, "by", "link").Above(0), For: of(16, 30).every(time.Minute)}, // NVLink 5
			{Severity: incident.Warning, When: Increase(collectors.NVLinkErrors, 2*time.Minute, "type", "crc", "by", "link").Above(20, 10), For: of(16, 30).every(time.Minute), // healthy links have a few a day
				Detail: "{entity} has more than ten packets a minute that are corrupted and sent again."},
		},
		Summary: "An NVLink has errors in most minutes.",
		Detail:  "{entity} had {value} replays and recoveries in 2 minutes.",
		Action:  "Reset the GPU; reseat it if that does not help.",
		Cause:   "A few errors over a link's life are normal. Errors in more than half of the minutes are not; of corrupted packets (CRC) it takes ten a minute.",
	},
	{
		ID: "nvlink_outlier", Alert: "NVLinkOutlier", Class: incident.InterconnectFault, Shadow: true,
		Levels: []Level{
			{Severity: incident.Warning, When: unlikeSiblings("errors"), For: of(9, 10).every(time.Minute)},
			{Severity: incident.Warning, When: unlikeSiblings("bytes"), For: of(9, 10).every(time.Minute)},
		},
		Summary: "An NVLink has far more errors or traffic than its siblings.",
		Detail:  "{entity} has {value} times what its siblings have, on top of that.",
		Action:  "Check what is at the other end.",
		Cause:   "Links are compared with the GPU's others; needs collectors.per_link.",
	},
	{
		ID: "nvlink_gpu_outlier", Alert: "NVLinkGPUOutlier", Class: incident.InterconnectFault, Shadow: true,
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.PeerDeviationRatio, "signal", "nvlink_errors").Optional().AtLeast(1, .5).And(Value(derived.PeerZScore, "signal", "nvlink_errors").AtLeast(5)),
			For: of(9, 10).every(time.Minute)}},
		Summary: "The NVLinks of one GPU have far more errors than its peers'.",
		Detail:  "{entity} has {value} times its peers' errors on top of theirs.",
		Action:  "Look at each link: collectors.per_link shows which has them.",
		Cause:   "The sum over a GPU's links, compared with GPUs of the same model on this host.",
	},
	{
		ID: "nvlink_ber", Alert: "NVLinkBER", Class: incident.InterconnectFault,
		Levels:  []Level{{Severity: incident.Critical, When: Value(collectors.NVLinkBER, "kind", "effective", "by", "link").Above(1e-12), For: of(3, 3)}},
		Summary: "The bit error ratio of an NVLink is too high.",
		Detail:  "{entity} has an effective bit error ratio of {value}.",
		Action:  "Check the link's signal: cable, connector, the other end.",
		Cause:   "What error correction leaves (NVLink 5); needs the collector nvlink_quality.",
	},
	{
		ID: "fabric_state", Alert: "GPUFabricUnhealthy", Class: incident.InterconnectFault,
		Levels: []Level{
			{Severity: incident.Critical, When: Value(collectors.FabricHealth, "check", "registration|degraded_bw|route_recovery|route_unhealthy|access_timeout_recovery|incorrect_configuration").Is(1), For: of(3, 3)},
			{Severity: incident.Critical, When: Value(collectors.FabricState, "state", "not_started|in_progress").Is(1), For: of(30, 30)},
		},
		Summary: "The GPU is unhealthy in its NVLink fabric.",
		Action:  "Look at the fabric manager: systemctl status nvidia-fabricmanager.",
		Cause:   "Without the fabric, CUDA does not start on GPUs behind NVSwitches.",
	},
	{
		ID: "ib_port", Alert: "IBPortDown", Class: incident.InterconnectFault,
		Levels:  []Level{{Severity: incident.Critical, When: Fell(collectors.IBPortUp, "by", "device").Above(0), For: of(3, 3)}},
		Summary: "An InfiniBand port that was up is down.",
		Detail:  "Port {entity} is down.",
		Action:  "Check the cable and the switch's port.",
		Cause:   "Jobs over several nodes fail or slow down. Ports that were never up are no fault.",
	},
	{
		ID: "ib_port_flap", Alert: "IBPortFlap", Class: incident.InterconnectFault,
		Levels:  []Level{{Severity: incident.Warning, When: Increase(collectors.IBPortDowned, 12*time.Hour, "by", "device").AtLeast(3)}},
		Summary: "An InfiniBand port goes down again and again.",
		Detail:  "Port {entity} went down {value} times in 12 hours.",
		Action:  "Change the cable.",
		Cause:   "Counted by the port itself (link_downed).",
	},
}
