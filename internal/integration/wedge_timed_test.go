//go:build timed

package integration

import (
	"slices"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// Not parallel, because it measures.
func TestScrapesBesideAHangAreFast(t *testing.T) {
	f := newDriver(t)
	f.set("gpus", "4")
	a := f.spawn().ready()
	a.well(2)
	f.set("hang.2", "")
	a.sees("the hang", func(s series) bool { return s.down("nvmlDeviceGetTemperature", 2) })
	took := make([]time.Duration, 200)
	before := fixture.Stolen(t)
	for i := range took {
		began := time.Now()
		a.get("/metrics")
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	t.Logf("scrapes beside a GPU that hangs: p50 %v, p99 %v", took[100], took[198])
	fixture.AtMost(t, took[198], 50*time.Millisecond+fixture.Stolen(t)-before, "p99 of a scrape is")
}
