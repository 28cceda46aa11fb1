package dashboards

import (
	"fmt"
	"strings"

	"gpusteward/collectors"
	"gpusteward/health"
	"gpusteward/health/incident"
)

// A variable is one of a dashboard's, that the reader of it sets.
type variable struct {
	name, label string
	of          *collectors.Metric // whose values of the label name there are
	where       scope
	many        bool // several at once, and all of them
}

// A scope selects what the variables say.
type scope string

// The scopes: Grafana writes a choice of several as a regular expression. A
// label that targets lack is empty, which All of cluster matches too.
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
	anyHosts     = variable{"instance", "Host", collectors.DriverUp, jobs, true}
	oneHost      = variable{"instance", "Host", collectors.DriverUp, jobs, false}
	anyGPUs      = variable{"gpu", "GPU", collectors.Up, hosts, true}
	oneGPU       = variable{"gpu", "GPU", collectors.Up, hosts, false}
	anyWorkloads = variable{"workload", "Workload", collectors.WorkloadInfo, hosts, true}
	anyTenants   = variable{"tenant", "Tenant", collectors.QuotaGuarantee, hosts, true}
)

// of selects the metric's series, with matchers such as `state="used"` beside
// the scope.
func (s scope) of(m *collectors.Metric, matchers ...string) string {
	return fmt.Sprintf("%s{%s}", m, strings.Join(append([]string{string(s)}, matchers...), ","))
}

// rate is the counter's rise a second, over what Grafana finds fit.
func (s scope) rate(m *collectors.Metric, matchers ...string) string {
	return "rate(" + s.of(m, matchers...) + "[$__rate_interval])"
}

// risen is the counter's rise over the time that is looked at.
func (s scope) risen(m *collectors.Metric) string {
	return "increase(" + s.of(m) + "[$__range])"
}

// by puts an aggregation around an expression, such as sum by (job).
func by(operator, labels, expr string) string {
	return fmt.Sprintf("%s by (%s) (%s)", operator, labels, expr)
}

// Labels that tell hosts, GPUs, workloads and tenants apart.
const (
	perHost     = "cluster, job, instance"
	perGPU      = perHost + ", gpu"
	perWorkload = perHost + ", workload"
	perTenant   = perHost + ", tenant"
)

// Legends, by what a dashboard shows several of.
const (
	ofHost = "{{instance}}"
	ofGPU  = "{{instance}} GPU {{gpu}}"
	theGPU = "GPU {{gpu}}"
)

// one is a panel's only query.
func one(expr, legend string) []query { return []query{{expr, legend}} }

// rising colours values by a check's levels: its thresholds as they are
// judged, from the least severe on. It panics where there is no such check.
func rising(check string) []step {
	steps := []step{{0, green}}
	for _, l := range levels(check) {
		steps = append(steps, step{l.When.Threshold, severityColors[l.Severity]})
	}
	return steps
}

// falling is rising for values of which the lower ones are bad: below the
// threshold of the check's first level it is red.
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

// severityColors are what severities look like.
var severityColors = map[incident.Severity]string{incident.Info: blue, incident.Warning: yellow, incident.Critical: orange, incident.Emergency: red}

// Metrics of the agent that its libraries make, and Prometheus's own. The
// journal is no package of the generators': its rows are repeated here, and a
// test holds the names against a running agent.
var (
	targetUp       = &collectors.Metric{Name: "up"}
	buildInfo      = &collectors.Metric{Name: "gpusteward_build_info", Labels: []string{"version", "revision", "goversion"}}
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
	ruleAlerts     = &collectors.Metric{Name: "ALERTS", Labels: []string{"alertname", "alertstate", "severity", "check", "gpu"}}

	foreign = []*collectors.Metric{targetUp, buildInfo, processCPU, processMemory, processFiles, processStart, goroutines, threads,
		scrapeDuration, scrapeSamples, journalEvents, journalLost, journalQueue, ruleAlerts}
)
