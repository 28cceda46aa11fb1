package alerts

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/health"
)

const minimalHead = `# The series of metrics.profile: minimal. Written by make generate from the rules of
# alerts/ and the metrics of alerts/minimal.go; do not edit. A row is a metric, matchers
# of its labels, and which of the series that are 0 a GPU shows. all: all of them; one:
# the first; found: the first, if nothing else would show that the metric was read.
`

// basics are series of the minimal profile that no rule needs: what a GPU is, its memory and its
// XIDs.
var basics = []string{device.Info.Name, device.MemoryBytes.Name + `{state="used"}`, faults.XIDs.Name,
	faults.XIDErrors.Name}

// selector matches a metric, or the name of a recorded series, and its matchers.
var selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})?`)

// selectors returns the series that an expression reads, each as a metric, a tab and its matchers. It
// panics at a metric that does not exist.
func selectors(expr string) (all []string) {
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		if slices.ContainsFunc(collectors.Metrics(), func(known *collectors.Metric) bool { return known.Name == m[1] }) {
			all = append(all, m[1]+"\t"+cmp.Or(m[2], "{}"))
		} else if strings.HasPrefix(m[1], "nvgpu_") || strings.HasPrefix(m[1], "gpusteward_") {
			panic(fmt.Sprintf("alerts: %s is not a metric: %s", m[1], expr))
		}
	}
	return all
}

// minimal returns the table of the minimal profile.
func minimal() string {
	rows := map[string]health.Zeros{} // by selector
	need := func(zeros health.Zeros, expr string) {
		for _, s := range selectors(expr) {
			if more := []health.Zeros{"", health.NoZeros, health.OneZero, health.AllZeros}; slices.Index(more, zeros) >
				slices.Index(more, rows[s]) {
				rows[s] = zeros
			}
		}
	}
	for _, c := range alerting() {
		for _, l := range c.Levels {
			for _, part := range append([]health.Condition{l.When}, l.When.While...) {
				need(part.Zeros(), part.Signal.String())
			}
		}
	}
	others := append(sloRules(), straggler.rule)
	for _, f := range fleetRules() {
		others = append(others, f.rule)
	}
	for _, s := range serviceLevels {
		others = append(others, rule{expr: s.good}, rule{expr: s.total})
	}
	for _, d := range derivations {
		others = append(others, rule{expr: d.expr})
	}
	for _, r := range others {
		need(health.AllZeros, r.expr)
	}
	for _, b := range basics {
		need(health.AllZeros, b)
	}
	var b strings.Builder
	b.WriteString(minimalHead)
	for _, s := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&b, "%s\t%s\n", s, rows[s])
	}
	return b.String()
}
