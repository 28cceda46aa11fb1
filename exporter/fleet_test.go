package exporter

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gpusteward/internal/fixture"
)

// selector selects the series of the tests.
const selector = `job="gpusteward"`

// targets are a Prometheus's, as its API lists them.
const targets = `{"status":"success","data":{"activeTargets":[
	{"labels":{"job":"gpusteward","instance":"node-002:9836"},"scrapeUrl":"https://node-002:9836/gpu/metrics?a=b"},
	{"labels":{"job":"gpusteward","instance":"node-003"},"scrapeUrl":"http://10.0.0.3:9836/metrics"},
	{"labels":{"job":"gpusteward","instance":"node-006"},"scrapeUrl":"javascript:alert(1)/metrics"},
	{"labels":{"job":"node","instance":"node-004"},"scrapeUrl":"http://node-004:9100/metrics"}]}}`

// prometheusWith answers as a Prometheus that has the series, each of which passes the
// filter of the query for its family.
func prometheusWith(t *testing.T, series, warning string) *httptest.Server {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := fixture.Value(parser.TextToMetricFamilies(strings.NewReader(series)))(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/query", func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		if n := strings.Count(query, "{"); n == 0 || n != strings.Count(query, selector+"}") {
			t.Errorf("%s does not select as it should", query)
		}
		answer := map[string]any{"resultType": "vector", "result": model.Vector{}}
		if f := families[regexp.MustCompile(`(\w+)\{`).FindStringSubmatch(query)[1]]; f != nil {
			answer["result"] = fixture.Value(expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: 1795867200000}, f))(t)
		}
		said := map[string]any{"status": "success", "data": answer}
		if warning != "" {
			said["warnings"] = []string{warning}
		}
		fixture.Must(t, json.NewEncoder(w).Encode(said))
	})
	mux.HandleFunc("/api/v1/targets", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(targets)) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestFleetAsText(t *testing.T) {
	t.Parallel()
	s := prometheusWith(t, string(fixture.Value(os.ReadFile("testdata/fleet.prom"))(t)), "store 7 is away"+hostile)
	var out bytes.Buffer
	o := FleetOptions{URL: s.URL + "/", Selector: "{" + selector + "}", Timeout: time.Minute}
	fixture.Equal(t, fixture.Value(Survey(t.Context(), o, &out))(t), 2, "the exit status")
	fits(t, minWidth, out.String())
	fixture.Golden(t, "testdata/fleet.txt", out.String())
	out.Reset()
	o.Most = 1
	fixture.Value(Survey(t.Context(), o, &out))(t)
	fixture.Contains(t, out.String(), "and 6 more", "of the hosts")
	fixture.Contains(t, out.String(), "and 3 more", "of the jobs")
}

// TestFleetState: the exit status is that of the worst host.
func TestFleetState(t *testing.T) {
	t.Parallel()
	const well = "up{instance=\"a\"} 1\nnvgpu_node_health_status{instance=\"a\"} 0\n"
	for _, c := range []struct {
		series, warning, state string
		status                 int
	}{
		{well, "", "ok", 0},
		{well, "a store is away", "ok", 3},
		{well + "nvgpu_job_hang{instance=\"a\",workload=\"" + `\"` + "\"} 1\n", "", "ok", 0},
		{well + "gpusteward_drained{instance=\"b\"} 1\n", "", "drained", 0},
		{well + "up{instance=\"b\"} 1\n", "", "unknown", 3},
		{well + "up{instance=\"b\"} 1\nnvgpu_node_health_status{instance=\"c\"} 1\n", "", "warning", 1},
		{well + "up{instance=\"b\"} 0\nnvgpu_node_health_status{instance=\"c\"} 1\n", "", "down", 2},
		{well + "up{instance=\"b\"} 0\nnvgpu_node_health_status{instance=\"c\"} 2\n", "", "critical", 2},
	} {
		var out bytes.Buffer
		o := FleetOptions{URL: prometheusWith(t, c.series, c.warning).URL, Selector: selector, Timeout: time.Minute, JSON: true}
		fixture.Equal(t, fixture.Value(Survey(t.Context(), o, &out))(t), c.status, "the exit status of %s", c.series)
		var f Fleet
		fixture.Must(t, json.Unmarshal(out.Bytes(), &f))
		fixture.Equal(t, f.State, c.state, "%s", c.series)
		fixture.Equal(t, f.Hosts[0].State, c.state, "the first host of %s", c.series)
	}
}

func TestFleetErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	answers := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // it sees the client leave once it has read all
		<-r.Context().Done()
	}))
	defer silent.Close()
	for _, c := range []struct{ url, want string }{
		{"prometheus:9090", "--url=prometheus:9090: it is not like http://prometheus:9090"},
		{nowhere(t), "no Prometheus answers at http://127.0.0.1:"},
		{strings.Replace(answers(401, ""), "//", "//me:secret@", 1), "me:xxxxx@127.0.0.1"},
		{answers(401, ""), "requires authentication: --http.config.file=FILE"},
		{answers(404, "404 page not found\x1b"), "404 page not found\ufffd: is --url the address of its API"},
		{answers(200, "<html>"), "does not answer as Prometheus does"},
		{answers(200, strings.Repeat(" ", maxAnswer+1)), "more than 16 MiB: --selector narrows it"},
		{answers(503, "no server is there"), "cannot answer: server error: 503 no server is there"},
		{answers(400, "Client sent an HTTP request to an HTTPS server."), "write https:// in --url"},
		{answers(400, `{"status":"error","errorType":"bad_data","error":"parse error"}`), "is --selector=job=\"gpusteward\" right?"},
		{answers(200, `{"status":"success","data":{"resultType":"vector","result":[]}}`), "no series is like up{job=\"gpusteward\"}"},
		{answers(200, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`), "does not answer as Prometheus does"},
	} {
		var out bytes.Buffer
		_, err := Survey(t.Context(), FleetOptions{URL: c.url, Selector: selector, Timeout: time.Minute}, &out)
		fixture.Fails(t, err, c.want, "%s", c.url)
		if text := err.Error(); strings.Contains(text, "secret") || strings.ContainsRune(text, '\x1b') || out.Len() > 0 {
			t.Errorf("%q, and %q", text, &out)
		}
	}
	_, err := Survey(t.Context(), FleetOptions{URL: silent.URL, Timeout: time.Millisecond}, new(bytes.Buffer))
	fixture.Fails(t, err, "does not answer within 1ms: --timeout allows more", "a server that says nothing")
}
