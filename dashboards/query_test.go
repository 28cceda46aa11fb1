//go:build servers

package dashboards

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"gpusteward/internal/fixture"
)

// patience bounds each wait. The simulated host has shown all of its series within half a minute.
const patience = 2 * time.Minute

// agentConfig shortens all tiers.
const agentConfig = `
collectors: {fast: 250ms, medium: 500ms, slow: 1s}
`

// TestQueries runs every query of every panel, variable and annotation on a real Prometheus,
// which has the shipped rules loaded and scrapes a simulated host. Each query must return data.
// PROMETHEUS_3 names a second Prometheus program, of the next major version.
func TestQueries(t *testing.T) {
	t.Parallel()
	agent := startAgent(t)
	for _, program := range []string{"prometheus", os.Getenv("PROMETHEUS_3")} {
		if program == "" {
			continue
		}
		t.Run(filepath.Base(program), func(t *testing.T) {
			t.Parallel()
			p := startPrometheus(t, program, agent)
			for _, d := range committed(t) {
				t.Run(*d.Uid, func(t *testing.T) {
					t.Parallel()
					p.answersAll(t, d)
				})
			}
		})
	}
}

// launch starts a program, which ends with the test, and waits until url answers.
func launch(t *testing.T, url string, cmd *exec.Cmd) {
	t.Helper()
	log := fixture.Value(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (make tools installs prometheus)", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(patience):
			cmd.Process.Kill()
			t.Errorf("%s does not end", cmd.Path)
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s says:\n%s", filepath.Base(cmd.Path), text[max(0, len(text)-4000):])
		}
	})
	begin := time.Now()
	for {
		if r, err := http.Get(url); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s ended: %v", cmd.Path, err)
		case <-time.After(20 * time.Millisecond):
			fixture.Stop(t, time.Since(begin) > patience, "%s does not answer at %s", cmd.Path, url)
		}
	}
}

// startAgent builds the agent, starts it on the simulated host, and returns its address.
func startAgent(t *testing.T) string {
	t.Helper()
	dir := fixture.ShortDir(t)
	program, config, address := filepath.Join(dir, "gpusteward"), filepath.Join(dir, "config.yml"), fixture.FreeAddress(t)
	out, err := exec.Command("go", "build", "-o", program, "..").CombinedOutput()
	fixture.Stop(t, err != nil, "build the agent: %v\n%s", err, out)
	fixture.Must(t, os.WriteFile(config, []byte(agentConfig), 0o644))
	launch(t, "http://"+address+"/-/ready", exec.Command(program, "--demo=testdata/host.yml", "--config.file="+config,
		"--state.dir="+filepath.Join(dir, "state"), "--runtime.dir="+dir, "--web.listen-address="+address))
	return address
}

// A server is a Prometheus that scrapes one agent.
type server struct{ url, instance string }

// startPrometheus starts a Prometheus with the shipped rules.
func startPrometheus(t *testing.T, program, target string) server {
	t.Helper()
	rules := fixture.Value(filepath.Abs("../alerts/*.rules.yml"))(t)
	dir, address := t.TempDir(), fixture.FreeAddress(t)
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - {job_name: gpusteward, static_configs: [{targets: [%q]}]}
`, rules, target)
	fixture.Must(t, os.WriteFile(config, []byte(text), 0o644))
	launchPrometheus(t, program, config, address)
	return server{"http://" + address, target}
}

// launchPrometheus starts a Prometheus with a configuration.
func launchPrometheus(t *testing.T, program, config, address string) {
	t.Helper()
	launch(t, "http://"+address+"/-/ready", exec.Command(program, "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(filepath.Dir(config), "data"), "--web.listen-address="+address))
}

// where returns the key of the query in rightlyEmpty and late.
func (a asked) where() string { return a.dashboard + ", " + a.place }

// due reports whether the query must return data.
func (a asked) due() bool { return rightlyEmpty[a.where()] == "" && late[a.where()] == "" }

// answersAll repeats the queries of a dashboard until each that must has returned data.
func (s server) answersAll(t *testing.T, d *sdk.Dashboard) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := queriesOf(t, d)
	waiting := slices.Clone(all)
	for !t.Failed() {
		choices := s.choices(ctx, t, d)
		waiting = slices.DeleteFunc(waiting, func(a asked) bool {
			return slices.ContainsFunc(choices, func(c choice) bool { return s.answers(ctx, t, a, c) })
		})
		if !slices.ContainsFunc(waiting, asked.due) {
			break
		}
		select {
		case <-ctx.Done():
			for _, a := range waiting {
				fixture.If(t, a.due(), "%v: no data", a)
			}
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
	for place, why := range rightlyEmpty {
		at := func(a asked) bool { return a.where() == place }
		fixture.If(t, strings.HasPrefix(place, *d.Uid+",") && !t.Failed() && !slices.ContainsFunc(waiting, at),
			"%s does not exist, or has data although it is listed as empty: %s", place, why)
	}
	t.Logf("%d queries, %d without data", len(all), len(waiting))
}

// A choice is a value for each variable.
type choice map[string]string

// choices returns the choices to test: All for variables that allow it, and each GPU for the others.
func (s server) choices(ctx context.Context, t *testing.T, d *sdk.Dashboard) []choice {
	all := []choice{{"job": "gpusteward", "instance": regexp.QuoteMeta(s.instance)}}
	for _, v := range d.Templating.List {
		switch {
		case v.AllValue != nil && *v.IncludeAll:
			all[0][v.Name] = *v.AllValue
		case v.Name == "gpu":
			first := all[0]
			all = nil
			a := asked{expr: "nvgpu_up", instant: true}
			series := fixture.Value(s.ask(ctx, a, first))(t)
			for _, one := range series {
				c := choice{"gpu": one.Metric["gpu"]}
				for name, value := range first {
					c[name] = value
				}
				all = append(all, c)
			}
		}
	}
	return all
}

// A series is a series of a response.
type series struct {
	Metric map[string]string
	Value  [2]any
	Values [][2]any
}

// some reports whether the series has a numeric value.
func (s series) some() bool {
	for _, v := range append(s.Values, s.Value) {
		if text, ok := v[1].(string); ok {
			if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(f) {
				return true
			}
		}
	}
	return false
}

// answers reports whether the query returns data. An error or a warning of Prometheus fails the test.
func (s server) answers(ctx context.Context, t *testing.T, a asked, c choice) bool {
	if a.label != "" && !strings.Contains(a.expr, "{") { // all series of a metric
		a.expr += "{}"
	}
	if a.label == "cluster" { // targets may lack this label: any series will do
		a.label = "job"
	}
	list, err := s.ask(ctx, a, c)
	if err != nil {
		fixture.If(t, ctx.Err() == nil, "%v: %v", a, err)
		return false
	}
	return slices.ContainsFunc(list, func(one series) bool {
		return one.some() && (a.label == "" || one.Metric[a.label] != "")
	})
}

// ask runs a query like Grafana: over the last minute, or now.
func (s server) ask(ctx context.Context, a asked, c choice) ([]series, error) {
	expr := strings.NewReplacer("$__rate_interval", "5s", "$__range", "60s").Replace(a.expr)
	expr = used.ReplaceAllStringFunc(expr, func(name string) string {
		return strings.ReplaceAll(c[name[1:]], `\`, `\\`)
	})
	now := float64(time.Now().UnixMilli()) / 1000
	q, path := url.Values{"query": {expr}}, "/api/v1/query"
	if !a.instant {
		path = "/api/v1/query_range"
		q.Set("start", strconv.FormatFloat(now-60, 'f', 3, 64))
		q.Set("end", strconv.FormatFloat(now, 'f', 3, 64))
		q.Set("step", "1")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Status, Error string
		Warnings      []string
		Data          struct{ Result []series }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", body, err)
	}
	if answer.Status != "success" || len(answer.Warnings) > 0 {
		return nil, fmt.Errorf("%s %q: %s", answer.Error, answer.Warnings, expr)
	}
	return answer.Data.Result, nil
}

// late lists panels that may have no data within the time of a test, with reasons.
var late = map[string]string{
	"gpusteward-workloads, Time until memory is full":  "a trend over a quarter of an hour",
	"gpusteward-health, Deviation from peers":          "finding peers under the same load takes minutes",
	"gpusteward-health, SM clock against peers":        "finding peers under the same load takes minutes",
	"gpusteward-health, Anomalies":                     "a baseline takes ten minutes",
	"gpusteward-health, Drift":                         "a baseline takes an hour",
	"gpusteward-health, Time until thermal slowdown":   "a trend over a quarter of an hour",
	"gpusteward-health, Time until spare rows run out": "a trend over two weeks",
	"gpusteward-quotas, Time until the memory cap":     "a trend over a quarter of an hour",

	"gpusteward-fleet, Error budget burn": "recorded every four minutes",
	"gpusteward-fleet, Error budget left": "recorded every four minutes",
}

// rightlyEmpty lists panels with a query that has no data on the simulated host, with reasons.
// The test fails if such a panel has data.
var rightlyEmpty = map[string]string{
	"gpusteward-agent, Series dropped": "no collector of this host has too many series",
	"gpusteward-workloads, Allocated and idle": "allocations come from the kubelet or Slurm's cgroups, " +
		"and the simulated host has neither",
	"gpusteward-agent, Attribution": "all sources of names answer",

	"gpusteward-jobs, Hangs":      "no job of the simulated host hangs",
	"gpusteward-jobs, Slow jobs":  "no job of the simulated host is slow",
	"gpusteward-jobs, Stragglers": "no rank of the simulated host is late",

	"gpusteward-quotas, Suspended workloads":          "no workload of the simulated host is suspended",
	"gpusteward-quotas, Time suspended":               "no workload of the simulated host is suspended",
	"gpusteward-quotas, Suspension time":              "no workload of the simulated host is suspended",
	"gpusteward-quotas, Waits for overcommitted GPUs": "no GPU of the simulated host is overcommitted",
	"gpusteward-quotas, Queue for overcommitted GPUs": "no GPU of the simulated host is overcommitted",
	"gpusteward-quotas, Suspensions":                  "no workload of the simulated host is suspended, hence none has failed",

	"gpusteward-quotas, Gemini": "the simulated host serves no programs under Gemini's hook",
	"gpusteward-quotas, MPS":    "the simulated host has no MPS daemon with clients",
}
