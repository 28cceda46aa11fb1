package collectors

// What the enforcer says of quotas. Health judges these; the enforcer puts
// them.
var (
	QoSWindows      = Counter("nvgpu_qos_windows_total", "Windows in which the workload wanted what its quota guarantees, by objective.", "workload", "objective")
	QoSViolations   = Counter("nvgpu_qos_violations_total", "Windows in which the workload did not get what its quota guarantees, by objective.", "workload", "objective")
	QuotaViolations = Counter("nvgpu_quota_violations_total", "Times that the workload took more than its quota allows, by what was done.", "workload", "action")
)

// quotaMetrics are those of quotas.
var quotaMetrics = []*Metric{QoSWindows, QoSViolations, QuotaViolations}
