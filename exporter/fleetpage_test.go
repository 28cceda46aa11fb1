package exporter

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// read returns the answer of a page.
func read(p *FleetPage) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/fleet", nil))
	return w
}

func TestFleetPage(t *testing.T) {
	t.Parallel()
	o := FleetOptions{URL: prometheusWith(t, string(fixture.Value(os.ReadFile("testdata/fleet.prom"))(t)), "store 7 is away"),
		Selector: selector, Timeout: time.Minute}
	w := read(&FleetPage{Home: true, From: o.name, Ask: o.ask})
	fixture.Equal(t, w.Header().Get("Content-Security-Policy"), pagePolicy, "the policy")
	text := strings.ReplaceAll(strings.ReplaceAll(w.Body.String(), o.URL, "http://prometheus"), pageHash(), "HASH")
	fixture.Golden(t, "testdata/fleet.html", text)
}

// TestFleetPageErrors: an error names the key of the configuration, not the flag of the command.
func TestFleetPageErrors(t *testing.T) {
	t.Parallel()
	page := &FleetPage{From: func() string { return "" }}
	w := read(page)
	fixture.Equal(t, w.Code, http.StatusNotFound, "without a Prometheus")
	fixture.Contains(t, w.Body.String(), "web.fleet.url", "the answer")
	page.From = func() string { return "x" }
	page.Ask = func(context.Context) (Fleet, error) {
		return Fleet{}, errors.New("<x> does not answer: --timeout allows more; is --selector=a right? --url is --http.config.file=FILE")
	}
	fixture.Contains(t, read(page).Body.String(), "&lt;x&gt; does not answer; is web.fleet.selector=a right? web.fleet.url is "+
		"web.fleet.http_config<", "the page")
}

// TestFleetPageAsksOnce: readers at one time wait for one answer, which is shown for a while.
func TestFleetPageAsksOnce(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	answers := make(chan struct{})
	page := &FleetPage{From: func() string { return "x" }, Ask: func(ctx context.Context) (Fleet, error) {
		asked.Add(1)
		<-answers
		end, limited := ctx.Deadline()
		fixture.If(t, !limited || time.Until(end) > FleetTime, "a question may take until %v", end)
		return NewFleet(time.Now(), nil), nil
	}}
	var readers sync.WaitGroup
	for range 20 {
		readers.Go(func() { fixture.Contains(t, read(page).Body.String(), "All hosts are healthy", "a page") })
	}
	close(answers)
	readers.Wait()
	fixture.Equal(t, asked.Load(), 1, "questions at one time")
	page.at = page.at.Add(-fleetAge)
	read(page)
	fixture.Equal(t, asked.Load(), 2, "questions after a while")
}

// TestFleetHost: a host's own verdict has the faults that last and alert somebody.
func TestFleetHost(t *testing.T) {
	t.Parallel()
	over := time.Unix(1, 0)
	for state, faults := range map[string][]Fault{
		"ok": {{Check: "a", Severity: "info"}, {Check: "b", Severity: "critical", Finding: Finding{Workload: "w"}},
			{Check: "c", Severity: "critical", Finding: Finding{Recovered: &over}}, {What: "XID 13"}},
		"warning":  {{Check: "a", Severity: "warning"}},
		"critical": {{Check: "a", Severity: "warning"}, {Check: "a", Severity: "emergency"}},
	} {
		h := server(t, func(o *Options) { o.Faults = func() []Fault { return faults } }).FleetHost("p")
		fixture.Equal(t, h.State, state, "the state by %v", faults)
		fixture.Equal(t, len(h.Faults), map[bool]int{true: 0, false: 1}[state == "ok"], "checks of %v", faults)
	}
}
