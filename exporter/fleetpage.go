package exporter

import (
	"bytes"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// FleetTime is the time that an answer to FleetPage may take. It is less than sendTimeout.
const FleetTime = 8 * time.Second

const fleetAge = 5 * time.Second // for which an answer is shown again

// A FleetPage serves the verdict on all hosts as a page, which is whole without scripts.
// However many readers there are, it asks one question at a time, and none within fleetAge
// of the last.
type FleetPage struct {
	// Ask returns the verdict. An error is shown in its place.
	Ask func(context.Context) (Fleet, error)
	// From says who tells the verdict; empty: nobody, and there is no page.
	From func() string
	// Home says that the root of the server is the page of one host.
	Home bool

	mu   sync.Mutex
	at   time.Time // of the last answer
	last Fleet
	err  error
}

// FleetHost returns the verdict on the host that s serves, with the URL of its page. It is
// safe for concurrent use.
func (s *Server) FleetHost(page string) FleetHost {
	state := s.now()
	facts := fleetFacts{up: true, verdict: -1, drained: state.Host.Drained, severity: map[string]string{},
		failing: map[string]*FleetFault{}, FleetHost: FleetHost{Host: state.Host.Name, GPUs: state.Host.GPUs,
			Expected: &state.Host.GPUsExpected, Page: page}}
	if state.Host.NotReady == "" {
		facts.verdict = 0
	}
	facts.fail(state.Faults, nil)
	for _, g := range state.GPUs {
		facts.fail(g.Faults, &g.Index)
	}
	facts.judge()
	return facts.FleetHost
}

// fail notes the faults of the host, or of a GPU, that last and alert somebody.
func (h *fleetFacts) fail(faults []Fault, gpu *int) {
	for _, f := range faults {
		bad := slices.Index(severities, f.Severity) - slices.Index(severities, "info")
		if f.Check == "" || f.Recovered != nil || f.Workload != "" || f.Tenant != "" || bad < 1 {
			continue
		}
		h.verdict = max(h.verdict, min(float64(bad), 2))
		h.alerts(f.Check, f.Severity)
		fault := h.fault(f.Check)
		if gpu != nil {
			fault.GPUs = append(fault.GPUs, *gpu)
		}
	}
}

// fleetDocument is the page's template.
var fleetDocument = sync.OnceValues(func() (*template.Template, error) {
	return template.ParseFS(pageFiles, "page/fleet.html")
})

// A fleetRow is a host, a job or a state of hosts on the page.
type fleetRow struct{ Name, State, Severity, Where, GPUs, Page, Text string }

// ServeHTTP answers with the page.
func (p *FleetPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := p.From()
	if from == "" {
		http.Error(w, "This agent knows no Prometheus: web.fleet.url in its configuration names the one that scrapes the hosts.",
			http.StatusNotFound)
		return
	}
	fleet, err := p.answer(r.Context())
	document, wrong := fleetDocument()
	var text bytes.Buffer
	if wrong == nil {
		view := viewOf(from, fleet, err)
		view.Home = p.Home
		wrong = document.Execute(&text, view)
	}
	if wrong != nil {
		http.Error(w, wrong.Error(), http.StatusInternalServerError)
		return
	}
	newAsset(".html", "no-store", text.Bytes()).ServeHTTP(w, r)
}

// answer returns an answer that is not older than fleetAge.
func (p *FleetPage) answer(ctx context.Context) (Fleet, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) >= fleetAge {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), FleetTime) // others wait for it, too
		defer cancel()
		p.last, p.err = p.Ask(limited)
		p.at = time.Now()
	}
	return p.last, p.err
}

// keys replaces what an error says of flags.
var keys = strings.NewReplacer("--http.config.file=FILE", "web.fleet.http_config", "--selector", "web.fleet.selector",
	"--url", "web.fleet.url", ": --timeout allows more", "")

// fleetView is what the template shows.
type fleetView struct {
	Files, From, Time, GPUs, Error string
	Notes                          []string
	States                         []fleetRow // how many hosts are in each state
	Jobs, Hosts, Healthy           []fleetRow
	Home                           bool // see FleetPage
}

// viewOf returns the view of f, or of err.
func viewOf(from string, f Fleet, err error) fleetView {
	v := fleetView{Files: "page/" + pageHash(), From: from, Notes: f.Notes}
	if err != nil {
		v.Error = keys.Replace(err.Error())
		return v
	}
	v.Time = f.Time.Format("15:04:05 UTC")
	number, listed, expected := f.count()
	v.GPUs = fmt.Sprintf("%d of %s", listed, plural(expected, "GPU"))
	for _, s := range fleetStates {
		row := fleetRow{Name: s.title, Text: fmt.Sprint(number[s.name])}
		if number[s.name] > 0 {
			row.Severity = s.severity
		}
		v.States = append(v.States, row)
	}
	clusters, pages := f.clusters(), map[[2]string]string{}
	for _, h := range f.Hosts {
		pages[[2]string{h.Cluster, h.Host}] = h.Page
		row := fleetRow{Name: h.name(clusters), State: h.State, Where: h.Rack, GPUs: h.gpus(), Page: h.Page}
		row.Severity, row.Text = h.said()
		if h.State == "ok" {
			v.Healthy = append(v.Healthy, row)
		} else {
			v.Hosts = append(v.Hosts, row)
		}
	}
	for _, j := range f.Jobs {
		row := fleetRow{Name: j.name(), Where: j.on()}
		row.Severity, row.Text = j.said()
		if page := pages[[2]string{j.Cluster, j.Host}]; page != "" {
			row.Page = page + "#workload=" + url.PathEscape(j.Workload)
		}
		v.Jobs = append(v.Jobs, row)
	}
	return v
}
