package health

import "time"

var agentChecks = []*Check{
	{
		ID: "agent_self", Alert: "AgentDegraded",
		Levels:  []Level{{Severity: Warning, When: Value(Pressure).Above(1, .8), For: of(3, 3)}},
		Summary: "The agent itself is not well.",
		Detail:  "One of the agent's resources is at {value} times its limit.",
		Action:  "gpusteward_pressure_ratio names the resource; look at the agent's log, restart it.",
		Cause:   "Memory, processor time, goroutines, its event queue: more than the agent should ever need; or a --state.dir that cannot be written (state).",
	},
	{
		ID: "telemetry_loss", Alert: "TelemetryLoss",
		Levels:  []Level{{Severity: Warning, When: Increase(TelemetryLost, 10*time.Minute).Above(0)}},
		Summary: "Something that happened may not have been seen or kept.",
		Detail:  "{value} records were lost in 10 minutes.",
		Action:  "gpusteward_telemetry_lost_total names the source: raise log_buf_len, free the disk of --state.dir.",
		Cause:   "The kernel's ring was overrun, the journal could not be written, or the kernel and NVML disagree on an XID.",
	},
}

// Checks returns all checks.
func Checks() (all []*Check) {
	for _, list := range [][]*Check{driverChecks, eventChecks, memoryChecks, thermalChecks, linkChecks, workloadChecks, agentChecks} {
		all = append(all, list...)
	}
	return all
}
