package health

import (
	"cmp"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

var (
	gpuBusy       = Value(activity.Utilization, "engine", "gpu")
	gpuWorks      = Value(derived.Spinning).Is(0)
	onIt          = Sum(workloads.Processes) // of all types
	thermalMargin = Value(device.TemperatureMargin)
	hot           = Value(device.Temperature, "sensor", "gpu")
	hottest       = Value(device.TemperatureThreshold, "threshold", "gpu_max")
	hotMemory     = Value(device.Temperature, "sensor", "memory")
	hottestMemory = Value(device.TemperatureThreshold, "threshold", "memory_max")
	slowdown      = Value(device.TemperatureThreshold, "threshold", "slowdown")
	braked        = Value(device.ClockEventActive, "reason", "hw_power_brake")
	brakes        = Rate(device.ClockEventSeconds, 5*time.Minute, "reason", "hw_power_brake")
	ownBrake      = Value(ChassisBrake).Below(.15)
	slowed        = Value(device.ClockEventActive, "reason", "hw_slowdown")
	holding       = Value(device.ClockEventActive, "reason",
		"hw_slowdown|hw_thermal|sw_thermal|hw_power_brake|sync_boost|app_clocks")
	ofMaxClock  = Div(Value(device.Clock, "clock", "sm"), Value(device.ClockMax, "clock", "sm"))
	ofMaxMemory = Div(Value(device.Clock, "clock", "memory"), Value(device.ClockMax, "clock", "memory"))
	drawn       = Div(Value(device.Power, "kind", "average", "scope", "gpu"),
		Value(device.PowerLimit, "limit", "enforced"))
	belowLimit = Div(Value(device.Power, "scope", "gpu"), Value(device.PowerLimit, "limit", "enforced")).
			Below(.75)
	heated = Rate(device.ClockEventSeconds, 5*time.Minute, "reason", "hw_thermal|sw_thermal")
)

// ofChassis is the sentence for ChassisBrake.
const ofChassis = "The power brake {holds|held} down the clocks of half of the GPUs or more for {percent} of the time."

// chassis adds ChassisBrake to s. An agent that has not watched for five minutes goes
// by what it saw, and by what the last agent saw: Prometheus has the GPUs' own counters
// from before.
func (m *memory) chassis(s *derived.Snapshot) {
	watched := min(max(m.now.Sub(m.start), time.Minute), brakes.window)
	ratio := func(all answers) float64 {
		slices.SortFunc(all, func(a, b reading) int { return cmp.Compare(b.value, a.value) })
		if half := max(1, (len(all)-1)/2); half < len(all) {
			return all[half].value
		}
		return 0
	}
	now, lately := readings(braked, m, s), readings(brakes, m, s)
	if len(now)+len(lately) > 0 {
		part := watched.Seconds() / brakes.window.Seconds()
		m.brake = max(min(ratio(lately)/part, 1), ratio(lately)+m.brakeBefore*(1-part))
		s.Add(collectors.Sample{Metric: ChassisBrake, Value: max(ratio(now), m.brake)})
	}
}

// ownHeat holds if neither the room's air nor the GPU's place in the chassis
// explains its heat.
var ownHeat = []Condition{Value(HotAisle).Is(0), Value(derived.HotPlace).Is(0)}

// hotterBy holds if one of a GPU's sensors is far above its peers'.
func hotterBy(signal string) Condition {
	return Value(derived.PeerDeviationCelsius, "signal", signal).Optional().AtLeast(8, 5).
		And(Value(derived.PeerZScore, "signal", signal).AtLeast(5))
}

// belowPartners holds if a GPU has less of something than the GPUs with the
// same job.
func belowPartners(signal string, set, clear float64) Condition {
	return Value(derived.PeerDeviationRatio, "signal", signal).Optional().AtMost(set, clear).
		And(Value(derived.PeerZScore, "signal", signal).AtMost(-5))
}

// noPower is the sentence for a GPU without a power reading.
const noPower = "{entity} {answers|answered}, and its power {cannot|could not} be read."

// nearSlowdown is the sentence for a GPU that slows itself down.
const nearSlowdown = "{entity} {is|was} {margin} the temperature at which its hardware slows it down."

var thermalChecks = []*Check{
	{
		ID: "thermal_margin", Alert: "GPUThermalMargin", Class: incident.HardwareFault,
		Levels: []Level{
			{Severity: incident.Info, When: thermalMargin.AtMost(0, 3), For: of(6, 6)},
			{Severity: incident.Info, When: Sub(hottest, hot).AtMost(0, 3), For: of(6, 6)},
			{Severity: incident.Warning, When: thermalMargin.AtMost(0, 3).And(ownHeat...), For: of(6, 6)},
			{Severity: incident.Warning, When: Sub(hottest, hot).AtMost(0, 3).And(ownHeat...), For: of(6, 6)},
			// Boards run their memory up to the limit, and none above it for
			// minutes.
			{Severity: incident.Warning, When: Sub(hottestMemory, hotMemory).AtMost(0, 3), For: of(30, 30),
				Detail: "The memory of {entity} {is|was} {margin} its temperature limit."},
			{Severity: incident.Critical,
				When: Sub(thermalMargin, Value(device.TemperatureTLimit, "threshold", "slowdown")).
					AtMost(0, 2), For: of(3, 3), Detail: nearSlowdown},
			{Severity: incident.Critical, When: Sub(slowdown, hot).AtMost(0, 2), For: of(3, 3), Detail: nearSlowdown},
		},
		Summary: "The GPU has no thermal margin left.",
		Detail:  "{entity} {is|was} {margin} its temperature limit.",
		Rule:    "{entity} or its memory is {margin} its temperature limit.",
		Action:  "Check the fans, the temperature of the air at the inlet, and the airflow.",
		Cause: "At the limit the GPU slows itself down; the alert is critical once the hardware slows it down. " +
			"The memory has a limit of its own. The alert is info if three quarters of the host's GPUs are as hot " +
			"(nvgpu_hot_aisle), because the cause is the air in the room, not a GPU. It is also info if the GPU is as " +
			"hot as it used to be at its power (nvgpu_hot_place), because its place is the cause; GPUThermalThrottle " +
			"reports lost work.",
	},
	{
		ID: "thermal_throttle_ratio", Alert: "GPUThermalThrottle", Class: incident.HardwareFault,
		Levels: []Level{
			{Severity: incident.Warning, When: heated.AtLeast(.05, .03), For: of(3, 3)},
			{Severity: incident.Critical, When: heated.AtLeast(.25, .20), For: of(3, 3)},
			// The hardware's own slowdown begins far above the temperature of a
			// cooled GPU: moments of it add up.
			{Severity: incident.Warning, When: Rate(device.ClockEventSeconds, 15*time.Minute,
				"reason", "hw_thermal").AtLeast(.02, .01),
				Detail: "Heat slowed {entity} down for {percent} of 15 minutes."},
		},
		Summary: "Heat holds the GPU's clocks down.",
		Detail:  "Heat slowed {entity} down for {percent} of 5 minutes.",
		Rule:    "Heat slowed {entity} down for {percent} of the last minutes.",
		Action:  "Check the fans, the temperature of the air at the inlet, and the airflow.",
		Cause:   "A moment of throttling is normal at full load; a share of the time is lost work.",
	},
	{
		ID: "power_brake", Alert: "GPUPowerBrake", Class: incident.HardwareFault,
		Levels: []Level{
			{Severity: incident.Warning, When: braked.Is(1).And(ownBrake), For: of(3, 3),
				Detail: "The power brake of {entity} {is|was} on."},
			// Samples miss a brake that comes and goes. A new agent needs a minute to see
			// that it is the chassis's.
			{Severity: incident.Warning, When: brakes.AtLeast(.25, .15).And(ownBrake), For: of(6, 6),
				Detail: "The power brake of {entity} was on for {percent} of 5 minutes."},
			{Severity: incident.Critical, When: Rate(device.ClockEventSeconds, 10*time.Minute,
				"reason", "hw_power_brake").AtLeast(.5, .4).And(ownBrake), For: of(6, 6),
				Detail: "The power brake of {entity} was on for {percent} of 10 minutes."},
			{Severity: incident.Warning, When: Value(ChassisBrake).AtLeast(.25, .15), For: of(3, 3), Detail: ofChassis},
			{Severity: incident.Critical, When: Value(ChassisBrake).AtLeast(.5, .4), For: of(54, 60), Detail: ofChassis},
		},
		Summary: "The power brake holds the GPU's clocks down.",
		Rule:    "The power brake of {entity} was on for {percent} of the time lately.",
		Action:  "Look at the power supplies and the rack's power.",
		Cause: "The power brake is a signal from outside the GPU: a supply failed or is overloaded. If half of the " +
			"host's GPUs have it, the alert is for the node.",
	},
	{
		ID: "hw_slowdown", Alert: "GPUHardwareSlowdown", Class: incident.HardwareFault,
		Levels: []Level{{Severity: incident.Warning, When: slowed.Is(1).
			And(gpuBusy.Above(.10), Value(device.ClockEventActive, "reason", "hw_thermal|hw_power_brake").Is(0)),
			// According to NVML, a change of clocks may show it for a moment,
			// but not for a seventh of ten minutes.
			For: of(9, 60)}},
		Summary: "The hardware halves the GPU's clocks or worse, and the reason is neither heat nor the power brake.",
		Detail:  "{entity} {reports|reported} a hardware slowdown again and again while it {is|was} busy.",
		Action:  "Check the power supply and the power connectors of the GPU.",
		Cause: "NVML reports hw_slowdown without hw_thermal and hw_power_brake: the board protects itself against " +
			"too much power, or a sensor is wrong.",
	},
	{
		ID: "temp_outlier", Alert: "GPUTemperatureOutlier", Class: incident.HardwareFault, Shadow: true,
		Levels: []Level{{Severity: incident.Warning, When: hotterBy("temperature"), For: of(9, 10)},
			{Severity: incident.Warning, When: hotterBy("temperature_memory"), For: of(9, 10),
				Detail: "The memory of {entity} {is|was} {count:degree|degrees} Celsius above its peers'."}},
		Summary: "The GPU is much hotter than its peers under the same load.",
		Detail:  "{entity} {is|was} {count:degree|degrees} Celsius above its peers.",
		Rule:    "{entity} or its memory is {count:degree|degrees} Celsius above its peers.",
		Action:  "Look at its airflow, its heat sink and the thermal paste.",
		Cause: "The GPU is compared with others of the same model, power cap and load on this host. The check needs " +
			"four such GPUs.",
	},
	{
		ID: "temp_rise", Alert: "GPUTemperatureRise", Class: incident.HardwareFault,
		// A GPU that starts or stops is warm or cool within minutes.
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.TemperatureRise).Optional().AtLeast(8, 5),
			For: of(30, 30)}},
		Summary: "The GPU is much hotter than it used to be at the same power, and the host's other GPUs are not.",
		Detail:  "{entity} {is|was} {count:degree|degrees} Celsius hotter than its past and the other GPUs explain.",
		Action:  "Look at its airflow, its heat sink, the thermal paste and its fans.",
		Cause: "The agent learns the temperature of a GPU at each power: ten minutes make a mean, which then follows " +
			"ever more slowly, by two degrees a day once it is a day old. The present temperature must exceed those " +
			"of all powers. The host's other GPUs show the effect of the air, so a host's only GPU is not judged. " +
			"GPUTemperatureOutlier reports a GPU that has always been in warmer air.",
	},
	{
		ID: "power_outlier", Alert: "GPUPowerOutlier", Class: incident.HardwareFault, Shadow: true,
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.PeerDeviationRatio, "signal", "power").
			Optional().AtLeast(.10, .05).And(Value(derived.PeerZScore, "signal", "power").AtLeast(5),
			gpuBusy.Above(.5)), For: of(9, 10)}},
		Summary: "The GPU draws much more power than its peers under the same load and clock.",
		Detail:  "{entity} {draws|drew} {percent} more than its peers.",
		Action:  "Compare its temperature with that of its peers: if it is hotter, inspect its cooling.",
		Cause:   "A GPU that needs more power for the same work runs hot or is worn.",
	},
	{
		ID: "slow_gpu", Alert: "GPUSlowOutlier", Class: incident.HardwareFault, Shadow: true,
		Levels: []Level{
			{Severity: incident.Warning, When: Value(derived.PeerClockRatio).Optional().
				AtMost(.90, .93), For: of(20, 24)},
			{Severity: incident.Critical, When: Value(derived.PeerClockRatio).Optional().
				AtMost(.75, .80), For: of(6, 6)},
		},
		Summary: "The GPU is slower than its peers under the same load.",
		Detail:  "{entity} {runs|ran} at {percent} of its peers' clock.",
		Action:  "See what holds its clocks down: nvidia-smi -q -d PERFORMANCE,CLOCK.",
		Cause:   "One slow GPU holds up a whole job that waits for all of them.",
	},
	{
		ID: "clock_outlier", Alert: "GPUClockOutlier", Class: incident.HardwareFault,
		// Boards differ by 4 % at their power limit, and not at all below it.
		Levels: []Level{{Severity: incident.Warning,
			When: belowPartners(derived.PartnerSignals[derived.Paced], -.05, -.03),
			For:  of(20, 24)}},
		Summary: "The GPU's clock is lower than that of the GPUs with the same job.",
		Detail:  "The SM clock of {entity} {is|was} {apart} the median of the GPUs at the same job.",
		Action:  "See what holds its clock down, or has locked it: nvidia-smi -q -d PERFORMANCE,CLOCK.",
		Cause: "One slow GPU holds up a whole job that waits for all of them. The GPU is compared with GPUs of the " +
			"same model and power limit on this host that are as busy with the same workloads and hold as much " +
			"memory; this needs four GPUs. A GPU at its power limit is compared only with " +
			"GPUs that are at theirs and have the same activity.",
	},
	{
		ID: "memory_clock", Alert: "GPUMemoryClockLow", Class: incident.HardwareFault,
		// Memory has few clocks, and they are further apart.
		Levels: []Level{{Severity: incident.Warning,
			When: belowPartners(derived.PartnerSignals[derived.MemoryPaced], -.05, -.03),
			For:  of(6, 6)},
			{Severity: incident.Warning, When: ofMaxMemory.Below(.30, .40).And(gpuBusy.Above(.5), onIt.Above(0)),
				For: of(6, 6), Detail: "{entity} {runs|ran} its memory at {percent} of its highest clock under load."}},
		Summary: "The GPU's memory clock is too low.",
		Detail:  "The memory clock of {entity} {is|was} {apart} the median of the GPUs at the same job.",
		Rule: "The memory clock of {entity} is below that of the GPUs at the same job, or is that of an idle GPU " +
			"under load.",
		Action: "Unlock the clock (nvidia-smi -rmc); if it stays low, reset the GPU.",
		Cause: "A working GPU runs its memory at one clock, which its whole model shares; the comparison is that of " +
			"GPUClockOutlier. Without peers, the alert looks for the clock of an idle GPU: less than a third of the " +
			"highest.",
	},
	{
		ID: "work_outlier", Alert: "GPUWorkOutlier", Class: incident.HardwareFault,
		Levels: []Level{
			// Ranks of a job differ by less, and a wait for a peer is over
			// sooner.
			{Severity: incident.Warning, When: belowPartners(derived.PartnerSignals[derived.Worked], -.30, -.20).
				And(gpuWorks), For: of(54, 60)},
			// Requests are spread unevenly for minutes.
			{Severity: incident.Warning, When: belowPartners(derived.PartnerSignals[derived.Behind], -.30, -.20).
				And(gpuWorks),
				For: of(54, 60).every(30 * time.Second)},
			// Its memory is slow.
			{Severity: incident.Warning, When: belowPartners(derived.PartnerSignals[derived.Moved], -.40, -.30).
				And(gpuWorks), For: of(54, 60).every(30 * time.Second),
				Detail: "The activity of the memory of {entity} {is|was} {apart} the median of the GPUs at the same job."},
		},
		Summary: "The GPU does much less than the GPUs with the same job, at the same clock.",
		Detail: "The SM activity and the power of {entity} {are|were} at least {apart} the median of the GPUs at the same " +
			"job.",
		Rule:   "The activity of {entity} or of its memory is {apart} the median of the GPUs at the same job.",
		Action: "Find what it waits for: PCIe, the CPU and memory of its NUMA node, its rank of the job.",
		Cause: "Its clock is no lower than the others', but both its SMs and its power show that it gets less done: " +
			"for ten minutes while it is as busy as they are, or for half an hour while it is less busy. Or its memory " +
			"is far less active at the same activity of the SMs, for half an hour. The comparison is that of GPUClockOutlier. GPUKernelHangSuspected reports a GPU that gets nothing done.",
	},
	{
		ID: "clock_stuck", Alert: "GPUClockStuck", Class: incident.HardwareFault,
		Levels: []Level{{Severity: incident.Warning, When: ofMaxClock.Below(.30, .40).
			And(gpuBusy.Above(.5), holding.Is(0), belowLimit), For: of(6, 6)}},
		Summary: "The GPU works at the clock of an idle one, without a reported reason.",
		Detail:  "{entity} {runs|ran} at {percent} of its highest clock under load.",
		Action:  "Unlock its clocks (nvidia-smi -rgc); if they stay low, reset it.",
		Cause: "Neither heat nor a setting of the application holds the clock down. Nor does power: the GPU draws " +
			"less than three quarters of its limit.",
	},
	{
		ID: "hung_kernel", Alert: "GPUKernelHangSuspected", Class: incident.ComputeTimeout,
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.Spinning).Is(1).And(onIt.Above(0)),
			For: of(60, 60)}},
		Summary: "A kernel seems to hang: the GPU is busy for minutes and gets nothing done.",
		Detail:  "{entity} {has|had} been at least 99 % busy for 10 minutes, {draws|drew} little power for its clock, and {moves|moved} no data.",
		Action:  "Ask the owner of the workload; py-spy or cuda-gdb show where it waits.",
		Cause: "Mostly a collective operation that waits for a rank that is gone. A kernel that only spins looks " +
			"the same. Small models, steps that are bound by communication and clocks that are locked low draw " +
			"as little, but they move data (8 MB a second is twice what an idle GPU and its agent exchange), or " +
			"draw as much as their clock allows: power is compared with the limit times the clock's part of its " +
			"highest. WorkloadHangSuspected tells of a workload that spins on several of its GPUs, and " +
			"GPUBusyWithoutProcess of a GPU without a process. Where the driver does not count what PCIe moves, " +
			"neither a GPU nor a workload can be judged.",
	},
	{
		ID: "busy_idle", Alert: "GPUBusyWithoutProcess", Class: incident.DriverCrash,
		Levels: []Level{{Severity: incident.Warning, When: gpuBusy.AtLeast(.99).And(onIt.Is(0), drawn.Below(.45)),
			For: of(60, 60)}}, // work that has just ended is over by then
		Summary: "The GPU is busy for minutes, and no process is on it.",
		Detail:  "{entity} {is|was} {percent} busy without a process, and {draws|drew} little power.",
		Action: "Look for a process in a container or a virtual machine that the driver does not list; if there is " +
			"none, reset the GPU.",
		Cause: "Work of a process that was killed still runs, or the driver's own count is stuck. No job gets its " +
			"share of such a GPU.",
	},
	{
		ID: "fan_stopped", Alert: "GPUFanStopped", Class: incident.HardwareFault,
		// Boards that stop their fans on purpose start them below 60 degrees.
		Levels: []Level{{Severity: incident.Critical, When: Value(derived.FansStopped).Optional().Above(0).
			And(hot.AtLeast(65)),
			For: of(6, 6)}},
		Summary: "A fan of the GPU stands still although the GPU is hot.",
		Detail:  "{entity} {has|had} {count:fan|fans} at 0 % at 65 degrees Celsius or more.",
		Action: "Give the fans back to the driver (nvidia-settings, GPUFanControlState=0); if one still stands, end the " +
			"work and check its cable.",
		Cause: "The GPU will slow down and then shut off. Boards without fans of their own, such as SXM modules and " +
			"passive cards, do not raise this alert.",
	},
	{
		ID: "sensor_lost", Alert: "GPUSensorLost", Class: incident.HardwareFault,
		Levels: []Level{
			// A failed reading may not be tried again for a minute.
			{Severity: incident.Warning, When: Lost(device.Temperature, "sensor", "gpu").Is(1), For: of(13, 60)},
			{Severity: incident.Warning, When: Lost(device.Power, "scope", "gpu").Is(1), For: of(13, 60), Detail: noPower},
		},
		Summary: "The GPU no longer reports its temperature or its power.",
		Detail:  "{entity} {answers|answered}, and its temperature {cannot|could not} be read.",
		Rule:    "{entity} answers, and its temperature or its power cannot be read.",
		Action:  "Reset the GPU when its work has ended.",
		Cause:   "It answers, but has failed for two of ten minutes to read a sensor that it had before.",
	},
}
