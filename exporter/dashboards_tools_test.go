//go:build tools

package exporter

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// A target has the labels that a scrape configuration gives to its series.
type target map[string]string

var (
	// static is a target of static_configs, or any target with honor_labels.
	static = target{"job": "gpusteward-dcgm", "instance": "node17:9836"}
	// pod is a target of a PodMonitor.
	pod = target{"job": "gpusteward-dcgm", "instance": "node17", "namespace": "gpusteward", "pod": "gpusteward-x7k2p",
		"container": "agent"}
)

// scraped returns a series as Prometheus stores it: labels of the target win, and those of the sample get another name.
func (to target) scraped(labels map[string]string) map[string]string {
	all := maps.Clone(map[string]string(to))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		as := name
		for _, taken := to[as]; taken || as != name && labels[as] != ""; _, taken = to[as] {
			as = "exported_" + as
		}
		all[as] = labels[name]
	}
	return all
}

// A promtest is a test that promtool runs on rules.
type promtest struct {
	Expr string       `yaml:"expr"`
	Eval string       `yaml:"eval_time"`
	Want []promresult `yaml:"exp_samples"`
}

type promresult struct {
	Labels string  `yaml:"labels"`
	Value  float64 `yaml:"value"`
}

// evaluate has promtool run tests on what a simulated host serves at the paths,
// as Prometheus stores it for a target. The values stand still for ten minutes.
func evaluate(t *testing.T, to target, samples []collectors.Sample, tests []promtest, paths ...string) {
	t.Helper()
	type series struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	var input []series
	s := server(t, func(o *Options) {
		o.Samples, o.Hostname = func() []collectors.Sample { return samples }, "node17"
	})
	for _, path := range paths {
		for name, f := range parse(t, request(s, "GET", path).Body) {
			if !strings.HasPrefix(name, "nvgpu_") && !strings.HasPrefix(name, "DCGM_") {
				continue
			}
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.Label {
					labels[l.GetName()] = l.GetValue()
				}
				var pairs []string
				for k, v := range to.scraped(labels) {
					pairs = append(pairs, fmt.Sprintf("%s=%q", k, v))
				}
				input = append(input, series{name + "{" + strings.Join(pairs, ",") + "}",
					fmt.Sprintf("%vx10", m.GetGauge().GetValue()+m.GetCounter().GetValue())})
			}
		}
	}
	text := fixture.Value(yaml.Marshal(map[string]any{"evaluation_interval": "1m", "tests": []any{map[string]any{
		"interval": "1m", "input_series": input, "promql_expr_test": tests}}}))(t)
	file := filepath.Join(t.TempDir(), "queries.test.yml")
	fixture.Must(t, os.WriteFile(file, text, 0o644))
	out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput()
	fixture.If(t, err != nil, "promtool (make tools installs it): %v\n%s", err, out)
}

// query tests whether Prometheus finds series for an expression.
func query(expr string, answered bool) promtest {
	one := promtest{Expr: "count(" + expr + ") > bool 0", Eval: "10m"}
	if answered {
		one.Want = []promresult{{"{}", 1}}
	}
	return one
}

// mixedHost returns the samples of a simulated host with a job, pods and MIG.
func mixedHost(t *testing.T) (samples []collectors.Sample) {
	t.Helper()
	hosttest.In(t, "mixed", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(90 * time.Second)
		samples = h.Samples()
	})
	return samples
}

// TestDashboards runs queries in the manner of public dashboards on /metrics/dcgm, for each kind of target. At least
// nine of ten that need no other exporter are answered.
func TestDashboards(t *testing.T) {
	t.Parallel()
	var anywhere, honored []promtest
	own, answered := 0, 0
	for i, c := range fixture.Rows(t, "testdata/dashboards.tsv") {
		fixture.Need(t, len(c), 4, "dashboards.tsv:%d: columns", i+1)
		if i == 0 || c[1] != "" {
			continue
		}
		q := query(c[3], c[2] == "yes")
		if own++; q.Want != nil {
			answered++
		}
		if c[0] == "pods-honored" {
			honored = append(honored, q)
		} else {
			anywhere = append(anywhere, q)
		}
	}
	t.Logf("%d of %d queries are answered", answered, own)
	fixture.If(t, own < 100 || answered*10 < own*9, "%d of %d queries are answered", answered, own)
	samples := mixedHost(t)
	evaluate(t, static, samples, append(honored, anywhere...), "/metrics/dcgm")
	evaluate(t, pod, samples, anywhere, "/metrics/dcgm")
}

// block finds the blocks of code in a page.
var block = regexp.MustCompile("(?ms)^ *```([a-z]+)\n(.*?)^ *```")

// TestMigrationExamples runs the page's expressions about holders, and the queries of its rules for prometheus-adapter.
func TestMigrationExamples(t *testing.T) {
	t.Parallel()
	text := fixture.Value(os.ReadFile("../docs/migration.md"))(t)
	var rules struct {
		Rules []struct {
			SeriesQuery  string `yaml:"seriesQuery"`
			MetricsQuery string `yaml:"metricsQuery"`
			Resources    struct {
				Overrides map[string]struct{ Resource string }
			}
		}
	}
	var own, adapter []promtest
	for _, b := range block.FindAllStringSubmatch(string(text), -1) {
		switch {
		case b[1] == "promql" && strings.Contains(b[2], "nvgpu_holder_info"):
			own = append(own, query(b[2], true))
		case b[1] == "yaml" && strings.Contains(b[2], "seriesQuery"):
			fixture.Must(t, yaml.Unmarshal([]byte(b[2]), &rules))
		}
	}
	for _, r := range rules.Rules {
		names := map[string]string{}
		for label, o := range r.Resources.Overrides {
			names[o.Resource] = label
		}
		series, _, _ := strings.Cut(r.SeriesQuery, "{")
		adapter = append(adapter, query(r.SeriesQuery, true), query(strings.NewReplacer("<<.Series>>", series,
			"<<.LabelMatchers>>", fmt.Sprintf(`%s="serving",%s=~"llama-3|llama-4"`, names["namespace"], names["pod"]),
			"<<.GroupBy>>", names["pod"]).Replace(r.MetricsQuery), true))
	}
	fixture.Stop(t, len(own) < 2 || len(adapter) < 2,
		"the page has %d expressions about holders and %d queries of rules", len(own), len(adapter))
	samples := mixedHost(t)
	for _, to := range []target{static, pod} {
		evaluate(t, to, samples, own, "/metrics")
		evaluate(t, to, samples, adapter, "/metrics/dcgm")
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	for _, scenario := range demos {
		s, _ := fixed(t, scenario)
		text := request(s, http.MethodGet, "/metrics").Body.Bytes()
		problems := fixture.Value(promlint.New(bytes.NewReader(text)).Lint())(t)
		for _, p := range problems {
			t.Errorf("%s: promlint: %s: %s", scenario, p.Metric, p.Text)
		}
		tool := exec.Command("promtool", "check", "metrics")
		tool.Stdin = bytes.NewReader(text)
		if out, err := tool.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%s: promtool check metrics (make tools installs it): %v\n%s", scenario, err, out)
		}
	}
}

// TestMigrationOfDCGM has Prometheus compute each of dcgm-exporter's names from /metrics by the page's expression, and
// compares the result with /metrics/dcgm.
func TestMigrationOfDCGM(t *testing.T) {
	t.Parallel()
	var s samples
	s.host(2, 2)
	s.h100("0")
	s.h100("1")
	s.added("0")
	s.added("1")
	var tests []promtest
	for _, m := range migrations(t) {
		if m.of != "dcgm-default" && m.of != "dcgm-added" || m.names == "DCGM_FI_DEV_XID_ERRORS" { // no expression turns a label into a value
			continue
		}
		// Their value is a whole number if units are converted.
		tests = append(tests, promtest{
			Expr: fmt.Sprintf("min by (gpu) (abs((%s) - on (gpu) %s) <= bool 0.5)", m.ours, m.names), Eval: "0s",
			Want: []promresult{{`{gpu="0"}`, 1}, {`{gpu="1"}`, 1}}})
	}
	want := 28 - 1
	for _, r := range dcgmRows {
		want += int(collectors.Bool(r.added))
	}
	fixture.If(t, len(tests) != want, "%d names of /metrics/dcgm compared, want %d: all but one", len(tests), want)
	evaluate(t, static, s, tests, "/metrics", "/metrics/dcgm")
}
