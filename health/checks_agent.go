package health

import (
	"time"

	"gpusteward/collectors/workloads"
	"gpusteward/health/incident"
)

var agentChecks = []*Check{
	{
		ID: "agent_self", Alert: "AgentDegraded",
		Levels: []Level{
			{Severity: incident.Warning, When: Value(Pressure).Above(1, .8), For: of(3, 3),
				Detail: "The agent uses {count:time|times} what it may use of a resource."},
			{Severity: incident.Info, When: Value(Starved).Is(1), For: of(3, 3)},
			{Severity: incident.Warning, When: Value(Starved).Is(1), For: of(13, 13)},
		},
		Summary: "The agent itself is unhealthy.",
		Detail:  "The host gives the agent no processor time.",
		Action: "gpusteward_pressure_ratio names the resource; look at the agent's log, restart it. With " +
			"gpusteward_starved at 1 the host is overloaded: give the agent CPUWeight, or a processor.",
		Cause: "It uses more memory, processor time, goroutines or event queue than it should ever need, or cannot " +
			"write its --state.dir (state). Or the data of all GPUs are old at once, which is info after half a " +
			"minute, and a warning after two.",
	},
	{
		ID: "telemetry_loss", Alert: "TelemetryLoss",
		Levels:  []Level{{Severity: incident.Warning, When: Increase(TelemetryLost, 10*time.Minute).Above(0)}},
		Summary: "Events may have been missed or lost.",
		Detail:  "{count:record was|records were} lost in 10 minutes.",
		Action:  "gpusteward_telemetry_lost_total names the source: raise log_buf_len, free the disk of --state.dir.",
		Cause: "The kernel's ring was overrun, the journal could not be written, or the kernel and NVML disagree " +
			"on an XID.",
	},
	{
		ID: "broker", Alert: "BrokerDown",
		Levels: []Level{
			{Severity: incident.Warning, When: Value(workloads.BrokerStarved).Is(1)},
			{Severity: incident.Warning, When: Value(workloads.BrokerUp).Is(0), For: of(3, 3)},
		},
		Summary: "The broker is down, or cannot serve its clients.",
		Detail:  "Programs that start now may run without a quota.",
		Action: "The log of the broker (gpusteward-broker.service) names the missing resource. nvgpu_broker_sessions " +
			"by state names the holders: unread sessions belong to programs that do not read their answers.",
		Cause: "It lacks descriptors (its own, or those in flight on its user's account), memory or sessions, or " +
			"connections arrive faster than it can accept them. Meanwhile no process counts as bypassing the hook, " +
			"and the escalation only warns.",
	},
}

// Checks returns all checks.
func Checks() (all []*Check) {
	for _, list := range [][]*Check{driverChecks, eventChecks, memoryChecks, thermalChecks, linkChecks,
		workloadChecks, agentChecks} {
		all = append(all, list...)
	}
	return all
}
