package health

import (
	"time"

	"gpusteward/collectors/workloads"
	"gpusteward/health/incident"
)

// giveTime is what to do about a starved agent.
const giveTime = "Give the agent a higher CPUWeight (systemd), or a processor of its own."

var agentChecks = []*Check{
	{
		ID: "agent_self", Alert: "AgentDegraded",
		Levels: []Level{
			{Severity: incident.Warning, When: Value(Pressure).Above(1, .8), For: of(3, 3),
				Detail: "The agent {uses|used} {percent} of what it may use{labels}."},
			{Severity: incident.Info, When: Value(Starved).Is(1), For: of(3, 3), Action: giveTime},
			{Severity: incident.Warning, When: Value(Starved).Is(1), For: of(13, 13), Action: giveTime},
		},
		Summary: "The agent itself is unhealthy.",
		Detail:  "The host {gives|gave} the agent no processor time: the data of all GPUs {are|were} old at once.",
		Rule: "gpusteward_pressure_ratio is above 1, or the host gives the agent no processor time: metrics and " +
			"alerts may be late.",
		Action: "Restart the agent; its log says what it did.",
		Cause: "It uses more memory, processor time, goroutines or event queue than it should ever need, or cannot " +
			"write its --state.dir (state): gpusteward_pressure_ratio names which. Or the host is overloaded " +
			"(gpusteward_starved), which is info after half a minute, and a warning after two.",
	},
	{
		ID: "telemetry_loss", Alert: "TelemetryLoss",
		Levels:  []Level{{Severity: incident.Warning, When: Increase(TelemetryLost, 10*time.Minute).Above(0)}},
		Summary: "Events may have been missed or lost.",
		Detail:  "The agent missed {count:record|records} in 10 minutes.",
		Action: "See which source gpusteward_telemetry_lost_total names: for the kernel's log raise log_buf_len, for the " +
			"journal free the disk of --state.dir.",
		Cause: "The kernel's ring was overrun, the journal could not be written, or the kernel and NVML disagree " +
			"on an XID.",
	},
	{
		ID: "broker", Alert: "BrokerDown",
		Levels: []Level{
			{Severity: incident.Warning, When: Value(workloads.BrokerStarved).Is(1),
				Detail: "The broker {lacks|lacked} a resource to serve a program that {starts|started}: it may run without a quota."},
			{Severity: incident.Warning, When: Value(workloads.BrokerUp).Is(0), For: of(3, 3),
				Action: "Start it: systemctl start gpusteward-broker. Its log says why it ended."},
		},
		Summary: "The broker is down, or cannot serve its clients.",
		Detail:  "No broker {answers|answered}: programs that {start|started} may run without a quota.",
		Rule: "The broker does not answer, or lacks a resource to serve a program that starts: it may run " +
			"without a quota.",
		Action: "Give the broker (gpusteward-broker.service) more of the resource that its log names.",
		Cause: "It lacks descriptors (its own, or those in flight on its user's account), memory or sessions, or " +
			"connections arrive faster than it can accept them. nvgpu_broker_sessions by state names the holders: " +
			"unread sessions belong to programs that do not read their answers. Meanwhile no process counts as " +
			"bypassing the hook, and the escalation only warns.",
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
