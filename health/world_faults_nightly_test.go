//go:build nightly

package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// TestWorldFaultsAreFound holds that faults from an independent author are
// found in time, each under its common name.
func TestWorldFaultsAreFound(t *testing.T) {
	all := findAll(t, 1)
	if slices.Contains(all, nil) {
		return // the command line selected some of them
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nfault\tfound after\twithin\talerts\tmessages\tby")
	right, said, once, one := 0, 0, 0, 0
	for _, r := range all {
		after := "NOTHING SAID"
		switch {
		case r.after >= 0 && !r.shadow:
			right++
			once += int(collectors.Bool(r.alerts == 1 || r.Least == incident.Info && r.alerts == 0))
			one += int(collectors.Bool(r.pages == 1 || r.Least == incident.Info && r.pages == 0))
			after = r.after.Round(time.Second).String()
		case r.after >= 0:
			after = "shadow only"
		case r.alerts > 0:
			after = "other name"
		}
		said += int(collectors.Bool(len(r.names) > 0))
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", r.Fault, after, time.Duration(r.Within), r.alerts, r.pages,
			strings.Join(slices.Compact(slices.Sorted(slices.Values(r.names))), ", "))
	}
	_ = w.Flush()
	t.Log(table.String())
	if right < foundToday {
		t.Errorf("only %d faults were found, and there were %d", right, foundToday)
	}
	t.Logf("%d of %d faults were found under their name in time, %d of them by one alert, %d by one message; of %d "+
		"something was said", right, len(all), once, one, said)
}
