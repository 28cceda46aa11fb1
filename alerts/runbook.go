package alerts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpusteward/health"
	"gpusteward/health/incident"
)

const runbookHead = `# Runbook

This page explains each alert and what to do about it. ` + "`make generate`" + ` writes it from the checks
(health/checks_*.go) and the fleet rules (alerts/fleet.go, alerts/rack.go, alerts/straggler.go,
alerts/slo.go); do not edit it.

| severity | meaning |
|---|---|
| emergency | out of service |
| critical | act now |
| warning | act within working hours |
| info | no action needed |

Each site has one source of alerts: the agent itself if an Alertmanager is configured, or Prometheus with
alerts/gpusteward.rules.yml. The agent's alerts have the label source="gpusteward" and more detail: the XID, the process
and the workload.

The agent ends an alert after as many clear samples as it needs to begin one, and after at least 5 minutes. That time
doubles, up to an hour, if the condition comes back within an hour. Prometheus holds each alert for 5 minutes. A
**latched** alert of the agent stays until the GPU is reset, the driver is reloaded, the host is rebooted, or an operator
runs ` + "`gpusteward ack`" + `. In Prometheus only the alerts of incidents are latched, because the agent counts those.

On the host, ` + "`gpusteward status`" + ` shows what fails. ` + "`nvgpu_health_check_failing`" + ` has the name of each
failing **check** as a label, and ` + "`/api/v1/events?check=NAME`" + ` has its history.

`

// runbook returns the text of RUNBOOK.md: a section for each alert.
func runbook() string {
	var b strings.Builder
	b.WriteString(runbookHead)
	b.WriteString(contents())
	for _, c := range alerting() {
		checkSection(&b, c)
	}
	for _, f := range fleetRules() {
		fleetSection(&b, f, "fleet.rules.yml")
	}
	fleetSection(&b, straggler, "stragglers.rules.yml")
	for _, s := range serviceLevels {
		sloSection(&b, s)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// contents returns the table of contents.
func contents() string {
	var names []string
	for _, c := range alerting() {
		names = append(names, c.Alert)
	}
	for _, f := range fleetRules() {
		names = append(names, f.alert)
	}
	names = append(names, straggler.alert)
	for _, s := range serviceLevels {
		names = append(names, s.alert)
	}
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "- [%s](#%s)\n", name, strings.ToLower(name))
	}
	return b.String() + "\n"
}

func checkSection(b *strings.Builder, c *health.Check) {
	var conditions strings.Builder
	conditions.WriteString("| severity | condition | samples | clears |\n|---|---|---|---|\n")
	for _, l := range c.Levels {
		over := "when the condition ends"
		if w := l.When; w.Clear != w.Threshold {
			over = fmt.Sprintf("at %g", w.Clear)
		}
		fmt.Fprintf(&conditions, "| %s | %s | %s | %s |\n", l.Severity, cell(l.When.Words()), l.For, over)
	}
	look := fmt.Sprintf("Check `%s`.", c.ID)
	switch ack := fmt.Sprintf("until a reset, a reboot, or `%s` as root.", c.Ack(anyEntity(c.Levels[0]))); {
	case c.Latched:
		look += " **Latched** " + ack
	case c.Holds():
		look += " **Latched** after an incident that only a reset ends, " + ack
	}
	if c.Shadow {
		look += " **Off by default**, because its threshold is a matter of judgement. " +
			"Load gpusteward-judgement.rules.yml, " +
			"or name it in `health.enable_alerts` of the agent's configuration, to enable the alert."
	}
	var metrics []string
	for _, m := range c.Metrics() {
		metrics = append(metrics, m.Name)
	}
	var exprs []string
	for _, r := range checkRules(c) {
		exprs = append(exprs, r.expr)
	}
	section{c.Alert, c.Summary, advice(c), c.Cause, conditions.String(), look, metrics, exprs}.write(b)
}

// anyEntity returns an entity of a level as readers would write it.
func anyEntity(l health.Level) incident.Entity {
	e := entityBy(l, func(label string) string {
		if label == "gpu" || label == "link" {
			return "N"
		}
		return "NAME"
	})
	if e.Device != "" {
		return incident.Entity{Device: e.Device} // it is on no GPU
	}
	return e
}

// advice returns the action of a check, and those of its levels that have their own.
func advice(c *health.Check) string {
	text := c.Advised(health.Level{}, anyEntity(c.Levels[0]))
	var own []string // actions of levels
	severities := map[string][]string{}
	for _, l := range c.Levels {
		if l.Action == "" || strings.Contains(l.Action, "{") {
			continue
		}
		if severities[l.Action] == nil {
			own = append(own, l.Action)
		}
		if s := l.Severity.String(); !slices.Contains(severities[l.Action], s) {
			severities[l.Action] = append(severities[l.Action], s)
		}
	}
	for _, action := range own {
		text += fmt.Sprintf(" (%s) %s", strings.Join(severities[action], ", "), action)
	}
	return text
}

// unplaced matches the place at the beginning of a summary.
var unplaced = regexp.MustCompile(`^\{\{[^:]*: `)

// ofRank matches the labels that are left in a summary.
var ofRank = regexp.MustCompile(`\{\{ \$labels\.\w+ \}\}`)

func fleetSection(b *strings.Builder, f fleetRule, file string) {
	often := "at once"
	if f.wait > 0 {
		often = "for " + health.PromDuration(f.wait)
	}
	section{f.alert, ofRank.ReplaceAllString(unplaced.ReplaceAllString(f.summary, ""), "N"), f.action, f.cause,
		fmt.Sprintf("| severity | duration |\n|---|---|\n| %s | %s |\n", f.severity, often),
		"Only Prometheus sees this: the rule is in " + file + ".", f.metrics(), []string{f.expr}}.write(b)
}

func sloSection(b *strings.Builder, s serviceLevel) {
	var conditions strings.Builder
	conditions.WriteString("| severity | windows | burn rate in both, above |\n|---|---|---|\n")
	var exprs []string
	for i, r := range s.rules() {
		fmt.Fprintf(&conditions, "| %s | %s, %s | %g |\n", r.severity, burns[i].long, burns[i].short, burns[i].factor)
		exprs = append(exprs, r.expr)
	}
	look := fmt.Sprintf("Only Prometheus sees this: the rule is in slo.rules.yml, and the objective, %g, in "+
		"objectives.rules.yml. %s", s.objective, s.doc)
	section{s.alert, s.bad + ".", s.action, s.cause, conditions.String(), look, nil, exprs}.write(b)
}

// A section is about one alert. What to do comes first.
type section struct {
	alert, summary, action, cause, conditions, look string
	metrics, exprs                                  []string
}

func (s section) write(b *strings.Builder) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n**What to do.** %s\n\n**What it means.** %s\n\n%s\n**How to look.** %s",
		s.alert, s.summary, s.action, s.cause, s.conditions, s.look)
	if metrics := slices.Compact(slices.Sorted(slices.Values(s.metrics))); metrics != nil {
		fmt.Fprintf(b, " Metrics: `%s`.", strings.Join(metrics, "`, `"))
	}
	fmt.Fprintf(b, "\n\n```promql\n%s\n```\n\n", strings.Join(s.exprs, "\n\n"))
}

// cell escapes text for a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
