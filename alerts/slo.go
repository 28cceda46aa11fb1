package alerts

import (
	"fmt"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
	"gpusteward/health/incident"
)

const sloHead = `# Service levels of each cluster: how fast they use up their error budgets of 30
# days, and alerts on several windows as in the Site Reliability Workbook.
# Written by make generate from alerts/slo.go; do not edit. Load this file with
# objectives.rules.yml, or with a copy of that which has your objectives. Each
# alert is a warning: what needs a person at night pages by itself. Requires
# Prometheus 2.42.
`

const objectivesHead = `# The objectives of slo.rules.yml: the part that should be good over 30 days.
# This is the place to change them: load a copy of this file with your numbers
# in place of it. Below 0.931 the fastest alert cannot fire. Written by make
# generate from alerts/slo.go.
`

// A serviceLevel compares the good part of something with all of it.
type serviceLevel struct {
	slo         string // its label
	doc         string
	objective   float64
	good, total string // expressions by job and cluster
	alert       string
	bad         string // the summary of the alert
	action      string
	cause       string
}

// undrained sums an expression without drained hosts.
func undrained(expr string) string {
	return fmt.Sprintf("sum by (job, cluster) (%s unless on (job, instance) %s == 1)", expr, collectors.Drained)
}

// inCluster is the rate of a counter by cluster.
func inCluster(m *collectors.Metric) string {
	return fmt.Sprintf("sum by (job, cluster) (rate(%s[%s]))", m, health.PromDuration(recordingWindow))
}

var serviceLevels = []serviceLevel{
	{
		slo: "gpus", objective: .99,
		doc:   "It counts the healthy GPUs, of those that hosts should have. Hosts that are drained or down do not count.",
		good:  undrained(fmt.Sprintf("(%s{gpu!=\"\"} == bool 0)", health.Status)),
		total: undrained(collectors.DevicesExpected.String()),
		alert: "GPUsBudgetBurn", bad: "Too many GPUs are unhealthy",
		action: "Repair what has been broken for longest: the dashboard Fleet lists the hosts.",
		cause:  "Each bad GPU has raised an alert of its own. Repairs do not keep pace with faults.",
	},
	{
		slo: "guarantees", objective: .99,
		doc:   "It counts the windows in which tenants got what their quotas guarantee, of those in which they wanted it.",
		good:  inCluster(workloads.QoSWindows) + " - " + inCluster(workloads.QoSViolations),
		total: inCluster(workloads.QoSWindows),
		alert: "GuaranteesBudgetBurn", bad: "Tenants miss their guarantees too often",
		action: "Move a tenant, or promise less: the dashboard Quotas shows who misses what.",
		cause:  "These are the misses that QuotaQoSViolation finds on single hosts, added up. Tenants are promised more than the GPUs have.",
	},
	{
		slo: "scrapes", objective: .995,
		doc:   "It counts the scrapes of agents that succeed.",
		good:  fmt.Sprintf("sum by (job, cluster) (avg_over_time(up{job=%q}[%s]))", job, health.PromDuration(recordingWindow)),
		total: fmt.Sprintf("count by (job, cluster) (avg_over_time(up{job=%q}[%s]))", job, health.PromDuration(recordingWindow)),
		alert: "ScrapesBudgetBurn", bad: "Too many scrapes of agents fail",
		action: "Find the hosts whose up is 0 now and then; compare scrape_duration_seconds with the timeout.",
		cause:  "GPUStewardDown pages for a host that stays away. Short failures add up only here.",
	},
}

// The recorded series.
const (
	sloGood      = "cluster_slo:service_level:good"
	sloTotal     = "cluster_slo:service_level:total"
	sloBurn      = "cluster_slo:service_level_burn:rate" // and the window
	sloBudget    = "cluster_slo:service_level_budget:ratio30d"
	sloObjective = "slo:service_level_objective:ratio"
)

// A burn is a pair of windows and a factor: how much faster than the objective allows the
// budget is used up in both. The long window shows that it matters, the short one that it
// continues.
type burn struct {
	long, short string
	factor      float64
	gone        string // time until the budget of 30 days is used up at this rate
}

var burns = []burn{
	{"1h", "5m", 14.4, "two days"},
	{"6h", "30m", 6, "five days"},
	{"3d", "6h", 1, "30 days"},
}

// sloStep is the interval of evaluations. A series is stale after 5 minutes.
const sloStep = 4 * time.Minute

// burned is the rate at which the budget is used up in a window.
func burned(window string) string {
	return fmt.Sprintf("(1 - sum_over_time(%s[%s]) / sum_over_time(%s[%[2]s])) / on (slo) group_left () (1 - %[4]s)",
		sloGood, window, sloTotal, sloObjective)
}

// rules returns the alerts of a service level, one for each burn.
func (s serviceLevel) rules() (all []rule) {
	for _, b := range burns {
		all = append(all, rule{
			alert: s.alert, severity: incident.Warning, window: b.long,
			expr: fmt.Sprintf("%s%s{slo=%q} > %g and %[1]s%[5]s{slo=%[3]q} > %[4]g", sloBurn, b.long, s.slo, b.factor,
				b.short),
			summary: s.bad + "{{ with $labels.cluster }} in cluster {{ . }}{{ end }}.",
			description: fmt.Sprintf("In the last %s the error budget went more than %g times as fast as the objective "+
				"allows: that of 30 days lasts %s.", b.long, b.factor, b.gone),
			action: s.action,
		})
	}
	return all
}

// sloRules returns the alerts of all service levels.
func sloRules() (all []rule) {
	for _, s := range serviceLevels {
		all = append(all, s.rules()...)
	}
	return all
}

// sloDerivations returns the recorded series that hold for all service levels.
func sloDerivations() (all []derivation) {
	for _, w := range []string{"5m", "30m", "1h", "6h", "3d"} {
		all = append(all, derivation{"How many times as fast as the objective allows the budget goes, over " + w + ".",
			sloBurn + w, burned(w)})
	}
	return append(all, derivation{"The part of the budget of 30 days that is left.", sloBudget, "1 - " + burned("30d")})
}

// sloFiles returns the rules, the objectives and the test.
func sloFiles() (rules, objectives, test string) {
	var b, o strings.Builder
	fmt.Fprintf(&b, "%sgroups:\n  - name: gpusteward-slo\n    interval: %s\n    rules:\n", sloHead, health.PromDuration(sloStep))
	fmt.Fprintf(&o, "%sgroups:\n  - name: gpusteward-objectives\n    interval: %s\n    rules:\n", objectivesHead,
		health.PromDuration(sloStep))
	for _, s := range serviceLevels {
		fmt.Fprintf(&o, "      # %s\n      - record: %s\n        expr: vector(%g)\n        labels: {slo: %s}\n", s.doc,
			sloObjective, s.objective, s.slo)
		for _, r := range [][2]string{{sloGood, s.good}, {sloTotal, s.total}} {
			fmt.Fprintf(&b, "      - record: %s\n        expr: %s\n        labels: {slo: %s}\n", r[0], r[1], s.slo)
		}
	}
	for _, d := range sloDerivations() {
		fmt.Fprintf(&b, "      # %s\n      - record: %s\n        expr: %s\n", d.doc, d.name, d.expr)
	}
	for _, r := range sloRules() {
		r.write(&b)
	}
	return b.String(), o.String(),
		testFile("slo.rules.yml, objectives.rules.yml", pace(sloStep), []ruleTest{sloTest()})
}

// sloTest is three days in which three clusters have the faults of every day. Then most GPUs of
// cluster b fail, half of its windows are missed, and a third of its scrapes. One of eight GPUs
// of cluster c fails.
func sloTest() ruleTest {
	const reboot, begins, end = 30 * time.Hour, 72 * time.Hour, 79 * time.Hour
	t := ruleTest{name: "service levels of three clusters", pace: pace(sloStep / 2)}
	for _, cluster := range []string{"a", "b", "c"} {
		show := func(name, labels string, value func(at time.Duration) float64) {
			line := series{name: fmt.Sprintf("%s{cluster=%q,instance=%q,job=%q%s}", name, cluster, cluster+"-1", job, labels)}
			t.pace.steps(end, func(at time.Duration) { line.values = append(line.values, value(at)) })
			t.series = append(t.series, line)
		}
		broken := map[string]int{"b": 5, "c": 1}[cluster]
		show(collectors.DevicesExpected.Name, "", func(time.Duration) float64 { return 8 })
		for gpu := range 8 {
			show(health.Status.Name, fmt.Sprintf(`,gpu="%d",uuid="GPU-%[1]d"`, gpu), func(at time.Duration) float64 {
				switch {
				case at >= begins && gpu < broken:
					return 2
				case gpu == 0 && at >= reboot && at < reboot+15*time.Minute:
					return 1
				}
				return 0
			})
		}
		n, windows, missed := 0, -60., 0.
		const labels = `,gpu="0",uuid="GPU-0",tenant="t",objective="compute"`
		show(workloads.QoSWindows.Name, labels, func(time.Duration) float64 { windows += 60; return windows })
		show(workloads.QoSViolations.Name, labels, func(at time.Duration) float64 {
			if cluster == "b" && at >= begins {
				missed += 30
			}
			return missed
		})
		show("up", "", func(at time.Duration) float64 {
			if n++; at == reboot || cluster == "b" && at >= begins && n%3 == 0 {
				return 0
			}
			return 1
		})
	}
	for _, s := range serviceLevels {
		fires := func(at time.Duration, burning map[string][]string) {
			e := expectation{at: at, alert: s.alert}
			for _, cluster := range []string{"b", "c"} {
				for _, r := range s.rules() {
					for _, w := range burning[cluster] {
						if r.window == w {
							r.summary = s.bad + " in cluster " + cluster + "."
							e.firing = append(e.firing, firing{append([][2]string{{"cluster", cluster}, {"job", job},
								{"slo", s.slo}}, r.labels()...), r.annotations()})
						}
					}
				}
			}
			t.alerts = append(t.alerts, e)
		}
		fires(reboot+16*time.Minute, nil)
		fires(begins-sloStep, nil)
		fires(begins+28*time.Minute, map[string][]string{"b": {"1h"}})
		late := map[string][]string{"b": {"1h", "6h", "3d"}}
		if s.slo == "gpus" {
			late["c"] = []string{"6h", "3d"}
		}
		fires(end, late)
	}
	return t
}
