package collectors

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestReference holds METRICS.md against the catalogue, or writes it under
// -update.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Metrics

Written from the catalogue by ` + "`make generate`" + `; do not edit.

Every series of a GPU carries ` + "`gpu`" + ` (NVML's index) and ` + "`uuid`" + `; the table names the labels beside them. What never changes is on
` + "`nvgpu_info`" + `: join it with ` + "`* on(uuid) group_left(name)`" + `. What a GPU does not have is absent, never 0, and listed in
` + "`gpusteward_unsupported`" + `; what failed or is older than two intervals is absent too.

A collector's tier says how often it reads (` + "`collectors.fast`, `medium`, `slow`" + ` in the configuration; static: once for each time the
driver is opened). Opt-in collectors read nothing until ` + "`collectors.enable`" + ` names them.

`)
	row := func(m *Metric) {
		labels := m.Labels
		if len(labels) > 1 && labels[1] == "uuid" {
			labels = labels[2:]
		}
		fmt.Fprintf(&b, "| `%s` | %v | %s | %s |\n", m, m.Type, strings.Join(labels, ", "), strings.ReplaceAll(m.Help, "|", "\\|"))
	}
	for _, c := range All() {
		optIn := ""
		if c.OptIn {
			optIn = ", opt-in"
		}
		fmt.Fprintf(&b, "## %s\n%s (%v%s)\n\n| metric | type | labels | |\n|---|---|---|---|\n", c.Name, c.Doc, c.Tier, optIn)
		for _, m := range c.Metrics {
			row(m)
		}
		b.WriteString("\n")
	}
	b.WriteString("## The agent itself\nBeside these: `gpusteward_build_info`, `go_*`, `process_*`, `promhttp_*`.\n\n| metric | type | labels | |\n|---|---|---|---|\n")
	for _, m := range selfMetrics {
		row(m)
	}
	b.WriteString(notShown(t))
	text := b.String()
	if update {
		if err := os.WriteFile("METRICS.md", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	stands, err := os.ReadFile("METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(stands) != text {
		t.Error("METRICS.md is not what the catalogue says; make generate")
	}
}

// notShown lists what nvidia-smi shows and no metric does, with the reason.
func notShown(t *testing.T) string {
	table, err := os.ReadFile("testdata/nvidia-smi.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("\n## What nvidia-smi shows and this does not\n\n| element of `nvidia-smi -q -x` | why not |\n|---|---|\n")
	for line := range strings.Lines(string(table)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) == 5 && f[0] != "path" && (f[1] == "" || f[1] == "-") {
			fmt.Fprintf(&b, "| %s | %s |\n", f[0], f[4])
		}
	}
	return b.String()
}
