//go:build timed

package integration

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestScrapesAmongHostileConnections has 200 clients request different pages,
// 40 at once, and read none, while one scrapes as Prometheus does.
func TestScrapesAmongHostileConnections(t *testing.T) {
	const clients = 200
	a := spawn(t, nil, "--demo").ready()
	waits := fixture.WatchWaits(t)
	waits.Add(a.pid)
	waits.Add(os.Getpid())
	_, quiet := a.scrapes(300, waits)
	var attack sync.WaitGroup
	var asked atomic.Int64
	t.Cleanup(attack.Wait)
	for n := range clients {
		attack.Go(func() { neverReads(t.Context(), n, strings.TrimPrefix(a.url, "http://"), &asked) })
	}
	eventually(t, "all clients have asked", func() bool { return asked.Load() >= clients })
	p50, p99 := a.scrapes(300, waits)
	t.Logf("scrapes among %d hostile connections, %d of which were cut off: p50 %v, p99 %v; %v without them",
		clients, asked.Load()-clients, p50, p99, quiet)
	// The pages for the others take both processors meanwhile: on two the third slowest
	// of 300 scrapes took 6 to 142 ms.
	fixture.AtMost(t, p99, 250*time.Millisecond+2*quiet, "p99 of a scrape is")
}

// scrapes scrapes n times, and returns the time that it took beside waits. Each scrape must
// be answered, and so must those of a chosen name among them.
func (a *agent) scrapes(n int, waits *fixture.Waits) (p50, p99 time.Duration) {
	a.t.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		time.Sleep(10 * time.Millisecond) // so that they hit several renderings
		began := time.Now()
		status, body, err := a.fetch("/metrics")
		ended := time.Now()
		took[i] = max(0, ended.Sub(began)-waits.Most(began, ended))
		fixture.If(a.t, err != nil || status != http.StatusOK || !strings.Contains(body, "nvgpu_up"),
			"a scrape is answered %d, %v", status, err)
		if i%10 > 0 {
			continue
		}
		if status, body, err = a.fetch("/metrics?name[]=nvgpu_up"); err != nil || status != http.StatusOK ||
			strings.Contains(body, "nvgpu_devices") {
			a.t.Errorf("a scrape of a chosen name is answered %d, %v", status, err)
		}
	}
	slices.Sort(took)
	return took[n/2], took[n*99/100-1]
}

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
