package health

import (
	"time"

	"gpusteward/collectors"
)

var agentChecks = []*Check{
	{
		ID: "agent_self", Alert: "AgentDegraded",
		Levels: []Level{
			{Severity: Warning, When: Value(Pressure).Above(1, .8), For: of(3, 3)},
			{Severity: Info, When: Value(Starved).Is(1), For: of(3, 3)},
			{Severity: Warning, When: Value(Starved).Is(1), For: of(13, 13)},
		},
		Summary: "The agent itself is not well.",
		Detail:  "The agent needs too much of a resource, or does not get to run: {value} of what is allowed.",
		Action:  "gpusteward_pressure_ratio names the resource; look at the agent's log, restart it. With gpusteward_starved at 1 the host is overloaded: give the agent CPUWeight, or a processor.",
		Cause:   "Memory, processor time, goroutines, its event queue: more than the agent should ever need; or a --state.dir that cannot be written (state). Or the data of all GPUs are old at once, because the agent does not get to run: info after half a minute, a warning after two.",
	},
	{
		ID: "telemetry_loss", Alert: "TelemetryLoss",
		Levels:  []Level{{Severity: Warning, When: Increase(TelemetryLost, 10*time.Minute).Above(0)}},
		Summary: "Something that happened may not have been seen or kept.",
		Detail:  "{value} records were lost in 10 minutes.",
		Action:  "gpusteward_telemetry_lost_total names the source: raise log_buf_len, free the disk of --state.dir.",
		Cause:   "The kernel's ring was overrun, the journal could not be written, or the kernel and NVML disagree on an XID.",
	},
	{
		ID: "broker", Alert: "BrokerDown",
		Levels: []Level{
			{Severity: Warning, When: Value(collectors.BrokerStarved).Is(1)},
			{Severity: Warning, When: Value(collectors.BrokerUp).Is(0), For: of(3, 3)},
		},
		Summary: "The broker is not there, or cannot serve whoever comes.",
		Detail:  "Programs that start now may run without a quota.",
		Action:  "The log of the broker (gpusteward-broker.service) says what is wanting; nvgpu_broker_sessions by state says who holds it: sessions that are unread are of programs that do not take their answers.",
		Cause:   "Without a session a program runs as if there were no quotas. It starves of descriptors (of its own, or in flight on its user's account), of memory, of sessions, or because connections come faster than it can take them. As long as it does, nobody is found to go around the hook, and the ladder does no more than warn.",
	},
}

// Checks returns all checks.
func Checks() (all []*Check) {
	for _, list := range [][]*Check{driverChecks, eventChecks, memoryChecks, thermalChecks, linkChecks, workloadChecks, agentChecks} {
		all = append(all, list...)
	}
	return all
}
