package exporter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
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

// prometheusWith answers as a Prometheus that has the series, each of which passes the
// filter of the query for its family.
func prometheusWith(t *testing.T, series, warning string) string {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := fixture.Value(parser.TextToMetricFamilies(strings.NewReader(series)))(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/query", func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		if n := strings.Count(query, "{"); n == 0 || n != strings.Count(query, selector) {
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
	mux.HandleFunc("/api/v1/targets", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, "testdata/fleet_targets.json")
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestFleetAsText(t *testing.T) {
	s := prometheusWith(t, string(fixture.Value(os.ReadFile("testdata/fleet.prom"))(t)), "store 7 is away"+hostile)
	var out bytes.Buffer
	o := FleetOptions{URL: s + "/", Selector: "{" + selector + "}", Timeout: time.Minute}
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
		{"", "", "ok", 0},
		{"", "a store is away", "ok", 3},
		{`nvgpu_job_hang{instance="a",workload="\""} 1`, "", "ok", 0},
		{`gpusteward_drained{instance="b"} 1`, "", "drained", 0},
		{`up{instance="b"} 1`, "", "unknown", 3},
		{"up{instance=\"b\"} 1\nnvgpu_node_health_status{instance=\"c\"} 1", "", "warning", 1},
		{"up{instance=\"b\"} 0\nnvgpu_node_health_status{instance=\"c\"} 1", "", "down", 2},
		{"up{instance=\"b\"} 0\nnvgpu_node_health_status{instance=\"c\"} 2", "", "critical", 2},
	} {
		var out bytes.Buffer
		o := FleetOptions{URL: prometheusWith(t, well+c.series+"\n", c.warning), Selector: selector, Timeout: time.Minute, JSON: true}
		fixture.Equal(t, fixture.Value(Survey(t.Context(), o, &out))(t), c.status, "the exit status of %s", c.series)
		var f Fleet
		fixture.Must(t, json.Unmarshal(out.Bytes(), &f))
		fixture.Equal(t, f.State, c.state, "%s", c.series)
		fixture.Equal(t, f.Hosts[0].State, c.state, "the first host of %s", c.series)
	}
}

func TestFleetErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, want string }{
		{"prometheus:9090", "--url=prometheus:9090: the address lacks http:// or https://, as in http://prometheus:9090"},
		{nowhere(t), "no Prometheus answers at http://127.0.0.1:"},
		{strings.Replace(answering(t, 401, ""), "//", "//me:secret@", 1), "requires authentication: --http.config.file=FILE"},
		{answering(t, 404, "404 page not found\x1b"), "404 page not found\ufffd: is --url the address of its API"},
		{answering(t, 200, "<html>"), "does not answer as Prometheus does"},
		{answering(t, 200, strings.Repeat(" ", maxAnswer+1)), "more than 16 MiB: --selector narrows it"},
		{answering(t, 503, "no server is there"), "cannot answer: server error: 503 no server is there"},
		{answering(t, 400, "Client sent an HTTP request to an HTTPS server."), "write https:// in --url"},
		{answering(t, 400, `{"status":"error","errorType":"bad_data","error":"parse error"}`), "is --selector=job=\"gpusteward\" right?"},
		{answering(t, 200, `{"status":"success","data":{"resultType":"vector","result":[]}}`), "no series is like up{job=\"gpusteward\"}"},
		{answering(t, 200, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`), "does not answer as Prometheus does"},
	} {
		var out bytes.Buffer
		_, err := Survey(t.Context(), FleetOptions{URL: c.url, Selector: selector, Timeout: time.Minute}, &out)
		fixture.Fails(t, err, c.want, "%s", c.url)
		if text := fmt.Sprint(err); strings.Contains(text, "secret") || strings.ContainsRune(text, '\x1b') || out.Len() > 0 {
			t.Errorf("%q, and %q", text, &out)
		}
	}
	silent := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	o := FleetOptions{URL: "http://" + silent.Addr().String(), Timeout: time.Millisecond}
	fixture.Fails(t, fixture.Error(Survey(t.Context(), o, new(bytes.Buffer))), "does not answer within 1ms: --timeout", "silence")
}
