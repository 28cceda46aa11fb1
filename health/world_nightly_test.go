//go:build nightly

package health

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestDetection holds that each fault is found in time by its check, and by no other.
func TestDetection(t *testing.T) { eachDetection(t, 1) }

// TestCauses expects each check to ignore a healthy cause that resembles its fault, and to find the fault itself.
func TestCauses(t *testing.T) { eachScene(t, 1) }

// TestWorldFaultsAreFound holds that faults from an independent author are found in time, each under its common name.
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
	fixture.If(t, right < foundToday, "only %d faults were found, and there were %d", right, foundToday)
	t.Logf("%d of %d faults were found under their name in time, %d of them by one alert, %d by one message; of %d "+
		"something was said", right, len(all), once, one, said)
}

// TestMemoryOfWindows limits an engine's memory after a day on a crowded host to 8 MiB.
func TestMemoryOfWindows(t *testing.T) {
	s := newSite(crowded, 1)
	before := heap()
	e := NewEngine(Checks(), s.now())
	for end := s.clock + 24*time.Hour; s.clock < end; {
		e.Eval(derived.NewSnapshot(slices.Clone(s.pass())), nil, s.now())
	}
	grown := heap() - before
	const most = 8 << 20
	t.Logf("the heap grew by %.1f MiB, windows say %.1f MiB", float64(grown)/(1<<20), float64(e.metrics.Size())/(1<<20))
	if grown > most || e.metrics.Size() > most {
		t.Errorf("the engine holds %d bytes, its windows say %d: more than %d", grown, e.metrics.Size(), most)
	}
	runtime.KeepAlive(e)
	runtime.KeepAlive(s)
}

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
