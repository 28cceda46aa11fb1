package integration

import (
	"fmt"
	"strings"
	"testing"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/internal/bounds"
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

// TestReferenceOfBounds compares the table of ARCHITECTURE.md and the limits of
// the units with the constants that hold the bounds, or writes them under -update.
func TestReferenceOfBounds(t *testing.T) {
	t.Parallel()
	all := fixture.Value(bounds.Read("."))(t)
	page := content(t, "ARCHITECTURE.md")
	before, rest, _ := strings.Cut(page, "\n## Bounds\n")
	_, rest, _ = strings.Cut(rest, "\n| what | ")
	_, after, is := strings.Cut(rest, "|\n\n")
	if !is {
		t.Fatal("ARCHITECTURE.md has no table of bounds")
	}
	head, _, _ := strings.Cut(page[len(before):], "| what | ")
	fixture.Golden(t, "ARCHITECTURE.md", before+head+bounds.Table(all)+"\n"+after)
	for program, path := range map[string]string{"observer": "deploy/systemd/gpusteward.service",
		"broker": "deploy/systemd/gpusteward-broker.service"} {
		unit := content(t, path)
		for _, key := range bounds.Limits {
			fixture.Contains(t, unit, "\n"+key+"=", "%s", path)
			fixture.AtLeast(t, bounds.Limit(all, program, key), 64, "%s of the %s", key, program)
		}
		fixture.Golden(t, path, bounds.Unit(all, program, unit))
	}
}
