//go:build long

package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"gpusteward/health/incident"
)

// TestWorldIsQuiet measures false alarms by style, on hosts whose author did
// not write the checks. make truth asks for a thousand days.
func TestWorldIsQuiet(t *testing.T) {
	began := time.Now()
	all := judgeWorld(*truthDays, *truthSeed)
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nstyle\thost-days\twarnings a host-week\tcriticals a host-week\thosts without any\tby check, "+
		"a host-week")
	for _, a := range all {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.2f\t%d of %d\t%s\n", a.name, a.days, a.weekly(incident.Warning),
			a.weekly(incident.Critical), a.silent, a.hosts, a.checks(false))
	}
	_ = w.Flush()
	t.Log(text.String())
	total := all[len(all)-1]
	t.Logf("shadow: %s", total.checks(true))
	t.Logf("%.0f host-days in %s", total.days, time.Since(began).Round(time.Second))
	slices.SortStableFunc(total.cries, func(a, b cry) int { return strings.Compare(a.style, b.style) })
	told := slices.DeleteFunc(total.cries, func(c cry) bool { return c.shadow || c.severity < incident.Warning })
	for i, c := range told {
		if i < *truthShow || *truthShow < 0 {
			t.Logf("%s, %s: %s %s of %s: %s", c.style, c.at.Round(time.Second), c.check, c.severity, c.entity, c.text)
		}
	}
	if w, c := total.weekly(incident.Warning), total.weekly(incident.Critical); *truthStyle == "" &&
		(w > worldWarnings || c > worldCriticals) {
		t.Errorf("%.1f warnings and %.1f criticals a host-week are more than %d and %d", w, c,
			worldWarnings, worldCriticals)
	}
}

// TestDetectionSample is a small part of TestDetection.
func TestDetectionSample(t *testing.T) { eachDetection(t, 40) }

// TestCausesSample is a small part of TestCauses.
func TestCausesSample(t *testing.T) { eachScene(t, 12) }

// TestWorldFaultsSample is a small part of TestWorldFaultsAreFound.
func TestWorldFaultsSample(t *testing.T) {
	for _, f := range findAll(t, 18) {
		if f != nil && (f.after < 0 || f.shadow) {
			t.Errorf("%s is not found under its name within %v", f.Fault, time.Duration(f.Within))
		}
	}
}
