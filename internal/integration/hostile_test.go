package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gpusteward/internal/fixture"
)

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
		if err != nil || status != http.StatusOK || !strings.Contains(body, "nvgpu_up") {
			a.t.Errorf("a scrape is answered %d, %v", status, err)
		}
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

// neverReads opens connection after connection to the agent until ctx ends. On
// each it requests 40 pages at once, each with a query of its own, as often as
// it can. It counts the connections that have sent a request.
func neverReads(ctx context.Context, n int, address string, asked *atomic.Int64) {
	query := []string{"x=%d", "name[]=nvgpu_up&name[]=n%d"}[n%2] // the whole response, or a part
	var requests strings.Builder
	for i := range 40 {
		fmt.Fprintf(&requests, "GET /metrics?"+query+" HTTP/1.1\r\nHost: agent\r\nAccept: text/plain;q=0.%d\r\n\r\n",
			n*40+i, n*40+i)
	}
	hold := func() {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })() // ends a waiting write
		for sent := 0; ; sent++ {
			if _, err := c.Write([]byte(requests.String())); err != nil {
				return
			}
			if sent == 0 {
				asked.Add(1)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	for ctx.Err() == nil {
		hold()
	}
}
