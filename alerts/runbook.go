package alerts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpusteward/health"
)

const runbookHead = `# Runbook

This page explains each alert and what to do about it. ` + "`make generate`" + ` writes it from the checks
(health/checks_*.go) and the fleet rules (alerts/fleet.go, alerts/straggler.go); do not edit it.

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
**latched** alert of the agent stays until the GPU is reset, the host is rebooted, or an operator
*runs
` + "`gpusteward ack`" + `. Prometheus has no latch.

`

// runbook returns the text of RUNBOOK.md: a section for each alert.
func runbook() string {
	var b strings.Builder
	b.WriteString(runbookHead)
	b.WriteString(contents())
	for _, c := range alerting() {
		checkSection(&b, c)
	}
	for _, f := range fleet {
		fleetSection(&b, f, "fleet.rules.yml")
	}
	fleetSection(&b, straggler, "stragglers.rules.yml")
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// contents returns the table of contents.
func contents() string {
	var names []string
	for _, c := range alerting() {
		names = append(names, c.Alert)
	}
	for _, f := range fleet {
		names = append(names, f.alert)
	}
	names = append(names, straggler.alert)
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "- [%s](#%s)\n", name, strings.ToLower(name))
	}
	return b.String() + "\n"
}

func checkSection(b *strings.Builder, c *health.Check) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n| severity | condition | samples | clears |\n|---|---|---|---|\n",
		c.Alert, c.Summary)
	for _, l := range c.Levels {
		over := "when the condition ends"
		if w := l.When; w.Clear != w.Threshold {
			over = fmt.Sprintf("at %g", w.Clear)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", l.Severity, cell(l.When.Words()), l.For, over)
	}
	look := fmt.Sprintf("`gpusteward status` on the host; the check is `%s` in `%s` and in `/api/v1/events?check=%s`.",
		c.ID, health.CheckFailing, c.ID)
	clears := "By itself."
	if c.Latched {
		clears = fmt.Sprintf("Latched: by a reset, a reboot, or `gpusteward ack %s gpu=N` as root.", c.ID)
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
	section(b, c.Cause, c.Action, look, clears, metrics, exprs)
}

// unplaced matches the place at the beginning of a summary.
var unplaced = regexp.MustCompile(`^\{\{[^:]*: `)

func fleetSection(b *strings.Builder, f fleetRule, file string) {
	often := "at once"
	if f.wait > 0 {
		often = "for " + promDuration(f.wait)
	}
	fmt.Fprintf(b, "## %s\n\n%s\n\n| severity | duration |\n|---|---|\n| %s | %s |\n",
		f.alert, unplaced.ReplaceAllString(f.summary, ""), f.severity, often)
	section(b, f.cause, f.action, "Only Prometheus sees this: the rule is in "+file+".", "By itself.",
		f.metrics(), []string{f.expr})
}

// section writes the part that all sections have in common.
func section(b *strings.Builder, cause, action, look, clears string, metrics, exprs []string) {
	fmt.Fprintf(b, "\n**What it means.** %s\n\n**What to do.** %s\n\n**How to look.** %s", cause, action, look)
	if metrics = slices.Compact(slices.Sorted(slices.Values(metrics))); metrics != nil {
		fmt.Fprintf(b, " Metrics: `%s`.", strings.Join(metrics, "`, `"))
	}
	fmt.Fprintf(b, "\n\n```promql\n%s\n```\n\n**How it clears.** %s\n\n", strings.Join(exprs, "\n\n"), clears)
}

// cell escapes text for a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
