package health

import "gpusteward/collectors"

// What the agent needs for itself, and what it lost.
var (
	Pressure      = collectors.HostGauge("gpusteward_pressure_ratio", "How much of a resource the agent uses, of the most that it should: more than 1 is too much.", "resource")
	TelemetryLost = collectors.HostCounter("gpusteward_telemetry_lost_total", "What may have happened and was not seen or not kept, by where it was lost.", "source")
)
