package alerts

import (
	"fmt"
	"slices"
	"strings"

	"gpusteward/health"
)

const runbookHead = `# Runbook

What each alert means and what to do about it. Written by make generate from the checks (health/checks_*.go) and the fleet's
rules (alerts/fleet.go); do not edit.

Severities: **emergency** is out of service, **critical** is for now, **warning** for working hours, **info** is worth knowing.

An alert comes from the agent itself, where an Alertmanager is configured, or from Prometheus with alerts/gpusteward.rules.yml: one
way per site. The agent's alerts have the label source="gpusteward" and say more: the XID, the process, the workload.

How alerts end: the agent holds one until its condition was over for as many samples as it takes to begin, and for 5 minutes; for longer
where it comes back within an hour: twice as long each time, at most an hour. Prometheus holds each for 5 minutes. A **latched** alert
of the agent stays until the GPU was reset, the host was rebooted, or an operator says so with ` + "`gpusteward ack`" + `; Prometheus knows no latch.

`

// runbook returns the text of RUNBOOK.md: a section for each alert.
func runbook() string {
	var b strings.Builder
	b.WriteString(runbookHead)
	for _, c := range alerting() {
		checkSection(&b, c)
	}
	for _, f := range fleet {
		fleetSection(&b, f)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func checkSection(b *strings.Builder, c *health.Check) {
	fmt.Fprintf(b, "## %s\n%s\n\n| severity | when | how often | over |\n|---|---|---|---|\n", c.Alert, c.Summary)
	for _, l := range c.Levels {
		over := "when it is no longer so"
		if w := l.When; w.Clear != w.Threshold {
			over = fmt.Sprintf("at %g", w.Clear)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", l.Severity, cell(l.When.Words()), l.For, over)
	}
	look := fmt.Sprintf("`gpusteward status` on the host; the check is `%s` in `%s` and in `/api/v1/events?check=%s`.", c.ID, health.CheckFailing, c.ID)
	clears := "By itself."
	if c.Latched {
		clears = fmt.Sprintf("Latched: by a reset, a reboot, or `gpusteward ack %s gpu=N` as root.", c.ID)
	}
	if c.Shadow {
		look += " **Off by default.** Its threshold is a judgement: it does not alert until gpusteward-judgement.rules.yml is loaded, or `health.page` in the agent's configuration names it."
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

func fleetSection(b *strings.Builder, f fleetRule) {
	often := "at once"
	if f.wait > 0 {
		often = "for " + promDuration(f.wait)
	}
	fmt.Fprintf(b, "## %s\n%s\n\n| severity | how often |\n|---|---|\n| %s | %s |\n", f.alert, strings.TrimPrefix(f.summary, ofLabel("instance")+": "), f.severity, often)
	section(b, f.cause, f.action, "Only Prometheus sees this: the rule is in fleet.rules.yml.", "By itself.", f.metrics(), []string{f.expr})
}

// section writes what all sections have.
func section(b *strings.Builder, cause, action, look, clears string, metrics, exprs []string) {
	fmt.Fprintf(b, "\n**What it means.** %s\n\n**What to do.** %s\n\n**How to look.** %s", cause, action, look)
	if metrics = slices.Compact(slices.Sorted(slices.Values(metrics))); metrics != nil {
		fmt.Fprintf(b, " Metrics: `%s`.", strings.Join(metrics, "`, `"))
	}
	fmt.Fprintf(b, "\n\n```promql\n%s\n```\n\n**How it clears.** %s\n\n", strings.Join(exprs, "\n\n"), clears)
}

// cell makes text fit for a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
