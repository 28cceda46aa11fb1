package collectors_test

import (
	"fmt"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

// TestReference compares METRICS.md with the catalogue, or writes it under
// -update.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Metrics

` + "`make generate`" + ` writes this page from the catalogue; do not edit it.

Every series of a GPU has the labels ` + "`gpu`" + ` (NVML's index) and ` + "`uuid`" + `; the tables list further labels.
Constant facts are labels of ` + "`nvgpu_info`" + `: join it with ` + "`* on(uuid) group_left(name)`" + `.
A value that a GPU does not have is absent, never 0, and is listed in ` + "`gpusteward_unsupported`" + `.
A value that could not be read, or is older than two intervals, is absent too.

The tier of a collector is its read interval (` + "`collectors.fast`" + `, ` + "`medium`" + `, ` + "`slow`" + ` in the
configuration; static: once each time the driver is opened). Opt-in collectors read nothing until
` + "`collectors.enable`" + ` names them.

`)
	row := func(m *collectors.Metric) {
		labels := m.Labels
		if len(labels) > 1 && labels[1] == "uuid" {
			labels = labels[2:]
		}
		fmt.Fprintf(&b, "| `%s` | %v | %s | %s |\n", m, m.Type, strings.Join(labels, ", "),
			strings.ReplaceAll(m.Help, "|", "\\|"))
	}
	for _, c := range collectors.All() {
		optIn := ""
		if c.OptIn {
			optIn = ", opt-in"
		}
		fmt.Fprintf(&b, "## %s\n\n%s (%v%s)\n\n| metric | type | labels | description |\n|---|---|---|---|\n", c.Name,
			c.Doc, c.Tier, optIn)
		for _, m := range c.Metrics {
			row(m)
		}
		b.WriteString("\n")
	}
	b.WriteString("## The agent itself\n\nThe agent also has `gpusteward_build_info`, `go_*`, `process_*` and " +
		"`promhttp_*`.\n\n" +
		"| metric | type | labels | description |\n|---|---|---|---|\n")
	for _, m := range collectors.SelfMetrics {
		row(m)
	}
	b.WriteString(notShown(t))
	fixture.Golden(t, "METRICS.md", b.String())
}

// notShown lists the values that nvidia-smi shows and no metric has, with the reason.
func notShown(t *testing.T) string {
	var b strings.Builder
	b.WriteString("\n## What nvidia-smi shows and this does not\n\n| element of `nvidia-smi -q -x` | why not |\n" +
		"|---|---|\n")
	for _, f := range fixture.Rows(t, "testdata/nvidia-smi.tsv") {
		if len(f) == 5 && f[0] != "path" && (f[1] == "" || f[1] == "-") {
			fmt.Fprintf(&b, "| %s | %s |\n", f[0], f[4])
		}
	}
	return b.String()
}
