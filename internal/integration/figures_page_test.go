//go:build bench

package integration

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestFiguresOfOpenPages prints the cost of ten open pages to the agent, with
// eight GPUs: its processor time with and without them, in turns.
func TestFiguresOfOpenPages(t *testing.T) {
	const pages, turns, length, goal = 10, 5, 10 * time.Second, .01
	m := startMeasured(t, binary(t), "--demo=mixed")
	time.Sleep(5 * time.Second) // its start is not a cost of pages
	var more []float64
	for range turns {
		without := m.run(0, length).cpu
		read := m.openPages(pages)
		with := m.run(0, length).cpu
		for _, bytes := range read() {
			if bytes < 10_000 { // a state of eight GPUs is about 2 kB, compressed
				t.Fatalf("a page has read %d bytes in %v", bytes, length)
			}
		}
		fmt.Printf(" 8 GPUs: cpu %.2f %% of a core, %.2f %% with %d open pages\n", 100*without, 100*with, pages)
		more = append(more, with-without)
	}
	slices.Sort(more)
	fmt.Printf(" %d open pages: %.2f %% of a core more in the median (goal 1)\n", pages, 100*more[turns/2])
	if more[turns/2] > goal {
		t.Errorf("ten open pages cost %.2f %% of a core, goal 1 %%", 100*more[turns/2])
	}
}

// openPages reads as so many pages do until the returned function is called,
// which returns the bytes of each page.
func (m *measured) openPages(pages int) (read func() []int64) {
	m.t.Helper()
	transport := &http.Transport{DisableCompression: true} // counts the bytes as sent
	var bodies []io.Closer
	bytes := make([]int64, pages)
	var readers sync.WaitGroup
	for i := range pages {
		live := m.stream(transport, "/api/v1/live")
		events := m.stream(transport, "/api/v1/events?follow=1")
		bodies = append(bodies, live, events)
		readers.Go(func() { bytes[i], _ = io.Copy(io.Discard, live) })
		readers.Go(func() { _, _ = io.Copy(io.Discard, events) })
	}
	return func() []int64 {
		for _, b := range bodies {
			b.Close()
		}
		readers.Wait()
		return bytes
	}
}

// stream opens one of the agent's streams, as a browser does.
func (m *measured) stream(transport *http.Transport, path string) io.ReadCloser {
	m.t.Helper()
	r := fixture.Value(http.NewRequest(http.MethodGet, m.url+path, nil))(m.t)
	r.Header.Set("Accept-Encoding", "gzip")
	r.Header.Set("Accept", "text/event-stream")
	answer := fixture.Value(transport.RoundTrip(r))(m.t)
	if answer.StatusCode != http.StatusOK {
		m.t.Fatal(path, answer.Status)
	}
	return answer.Body
}
