package dashboards

import (
	"fmt"
	"strings"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
	"gpusteward/health/incident"
)

// A variable is a dashboard variable, of which the reader chooses one value or several.
type variable struct {
	name, label string
	of          *collectors.Metric // the metric with the label name, which has the values
	where       scope
	all         bool // whether All can be selected, and is at first
}

// A scope is the label matchers of a set of variables.
type scope string

// The scopes. Grafana writes a choice of several values as a regular expression. A missing label
// is empty, and All of cluster matches it, too.
const (
	clusters  scope = `cluster=~"$cluster"`
	jobs      scope = clusters + `,job=~"$job"`
	hosts     scope = jobs + `,instance=~"$instance"`
	gpus      scope = hosts + `,gpu=~"$gpu"`
	ofWork    scope = gpus + `,workload=~"$workload"`
	ofTenants scope = gpus + `,tenant=~"$tenant"`
	tenants   scope = hosts + `,tenant=~"$tenant"`
)

// Variables of several dashboards.
var (
	anyHosts     = variable{"instance", "Instance", collectors.DriverUp, jobs, true}
	oneHost      = variable{"instance", "Instance", collectors.DriverUp, jobs, false}
	anyGPUs      = variable{"gpu", "GPU", collectors.Up, hosts, true}
	oneGPU       = variable{"gpu", "GPU", collectors.Up, hosts, false}
	anyWorkloads = variable{"workload", "Workload", workloads.WorkloadInfo, hosts, true}
	anyTenants   = variable{"tenant", "Tenant", workloads.QuotaGuarantee, hosts, true}
)

// of selects the metric's series in the scope, with further matchers such as `state="used"`.
func (s scope) of(m *collectors.Metric, matchers ...string) string {
	return fmt.Sprintf("%s{%s}", m, strings.Join(append([]string{string(s)}, matchers...), ","))
}

// rate is the counter's rate per second over Grafana's rate interval.
func (s scope) rate(m *collectors.Metric, matchers ...string) string {
	return "rate(" + s.of(m, matchers...) + "[$__rate_interval])"
}

// risen is the counter's increase over the time range of the dashboard.
func (s scope) risen(m *collectors.Metric) string {
	return "increase(" + s.of(m) + "[$__range])"
}

// by aggregates an expression, as in sum by (job).
func by(operator, labels, expr string) string {
	return fmt.Sprintf("%s by (%s) (%s)", operator, labels, expr)
}

// Labels that identify hosts, GPUs, workloads and tenants.
const (
	perHost     = "cluster, job, instance"
	perGPU      = perHost + ", gpu"
	perWorkload = perHost + ", workload"
)

// Legends of series by host or by GPU.
const (
	ofHost = "{{instance}}"
	ofGPU  = "{{instance}} GPU {{gpu}}"
)

// one is a panel's only query.
func one(expr, legend string) []query { return []query{{expr, legend}} }

// rising colours values by the thresholds of a check's levels, from the least severe on. It
// panics if there is no such check.
func rising(check string) []step {
	steps := []step{{0, green}}
	for _, l := range levels(check) {
		steps = append(steps, step{l.When.Threshold, severityColors[l.Severity]})
	}
	return steps
}

// falling is rising for values that are bad when low: red below the threshold of the check's
// first level.
func falling(check string) []step {
	return []step{{0, red}, {levels(check)[0].When.Threshold, green}}
}

func levels(check string) []health.Level {
	for _, c := range health.Checks() {
		if c.ID == check {
			return c.Levels
		}
	}
	panic("dashboards: no check " + check)
}

var severityColors = map[incident.Severity]string{
	incident.Info: blue, incident.Warning: yellow, incident.Critical: orange, incident.Emergency: red,
}

// Metrics of the agent's libraries and of Prometheus itself. The rows of the journal are
// repeated here, because this package does not import it; a test compares the names with a
// running agent.
var (
	targetUp  = &collectors.Metric{Name: "up"}
	buildInfo = &collectors.Metric{Name: "gpusteward_build_info",
		Labels: []string{"version", "revision", "goversion"}}
	processCPU     = &collectors.Metric{Name: "process_cpu_seconds_total"}
	processMemory  = &collectors.Metric{Name: "process_resident_memory_bytes"}
	processFiles   = &collectors.Metric{Name: "process_open_fds"}
	processStart   = &collectors.Metric{Name: "process_start_time_seconds"}
	goroutines     = &collectors.Metric{Name: "go_goroutines"}
	threads        = &collectors.Metric{Name: "go_threads"}
	scrapeDuration = &collectors.Metric{Name: "scrape_duration_seconds"}
	scrapeSamples  = &collectors.Metric{Name: "scrape_samples_scraped"}
	journalEvents  = &collectors.Metric{Name: "gpusteward_journal_events_total"}
	journalLost    = &collectors.Metric{Name: "gpusteward_journal_lost_total", Labels: []string{"reason"}}
	journalQueue   = &collectors.Metric{Name: "gpusteward_journal_queue_length"}
	burnRate       = &collectors.Metric{Name: "cluster_slo:service_level_burn:rate1h", Labels: []string{"slo"}}
	budgetLeft     = &collectors.Metric{Name: "cluster_slo:service_level_budget:ratio30d", Labels: []string{"slo"}}
	ruleAlerts     = &collectors.Metric{Name: "ALERTS",
		Labels: []string{"alertname", "alertstate", "severity", "check", "gpu"}}

	// the classic buckets of a histogram
	stepBuckets = &collectors.Metric{Name: workloads.JobStep.Name + "_bucket", Type: collectors.CounterType,
		Labels: append(workloads.JobStep.Labels[:4:4], "le")}

	foreign = append(dcgmMetrics(), stepBuckets, targetUp, buildInfo, processCPU, processMemory, processFiles,
		processStart, goroutines, threads, scrapeDuration, scrapeSamples, journalEvents, journalLost, journalQueue, ruleAlerts, burnRate, budgetLeft)
)
