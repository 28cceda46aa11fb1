package integration

import (
	"fmt"
	"strings"
	"testing"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/internal/fixture"
)

// TestReferenceOfHealth compares health/METRICS.md with the metrics that health
// adds to those of the collectors, or writes it under -update.
func TestReferenceOfHealth(t *testing.T) {
	t.Parallel()
	read := content(t, "collectors/METRICS.md")
	var b strings.Builder
	b.WriteString("# Metrics of health\n\n`make generate` writes this page from the catalogue; do not edit it. These " +
		"metrics are derived from the readings in\n" +
		"[collectors/METRICS.md](../collectors/METRICS.md). Families whose name begins with `nvgpu_peer`, " +
		"`nvgpu_anomaly` or\n" +
		"`nvgpu_drift`, and forecasts, are absent if there is nothing to compare with or no trend.\n\n" +
		"| metric | type | labels | description |\n|---|---|---|---|\n")
	n := 0
	for _, m := range collectors.Metrics() {
		if !strings.Contains(read, "`"+m.Name+"`") {
			fmt.Fprintf(&b, "| `%s` | %v | %s | %s |\n", m, m.Type, strings.Join(m.Labels, ", "),
				strings.ReplaceAll(m.Help, "|", "\\|"))
			n++
		}
	}
	fixture.AtLeast(t, n, 30, "… metrics of health; are they linked in?")
	fixture.Golden(t, "health/METRICS.md", b.String())
}
