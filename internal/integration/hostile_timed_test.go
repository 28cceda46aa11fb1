//go:build timed

package integration

import (
	"os"
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
