package health

import "gpusteward/collectors"

// The agent's own use of resources, and its losses.
var (
	Pressure = collectors.HostGauge("gpusteward_pressure_ratio",
		"The agent's use of a resource, as a part of its limit: more than 1 is too much.", "resource")
	TelemetryLost = collectors.HostCounter("gpusteward_telemetry_lost_total",
		"Events that may have happened and were not seen or not kept, by the place of the loss.", "source")
)
