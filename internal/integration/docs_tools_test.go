//go:build tools

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// promql returns the expressions of a page's blocks of PromQL, which empty lines separate.
func promql(page string) (all []string) {
	for _, b := range fence.FindAllStringSubmatch(page, -1) {
		if b[1] == "promql" {
			for _, expr := range strings.Split(strings.TrimSpace(b[2]), "\n\n") {
				lines := slices.DeleteFunc(strings.Split(expr, "\n"),
					func(l string) bool { return strings.HasPrefix(l, "#") })
				all = append(all, strings.Join(strings.Fields(strings.Join(lines, " ")), " "))
			}
		}
	}
	return all
}

// promtool runs Prometheus's tool on a file with that text.
func promtool(t *testing.T, text string, args ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "docs.yml")
	fixture.Must(t, os.WriteFile(file, []byte(text), 0o644))
	out, err := exec.Command("promtool", append(args, file)...).CombinedOutput()
	fixture.If(t, err != nil, "promtool (make tools installs it): %v\n%s", err, out)
}

// notAnswered are metrics without series on these hosts: those that are not simulated, and those of faults.
var notAnswered = []string{"nvgpu_hami_", "nvgpu_retired_pages", "nvgpu_c2c_", "nvgpu_gpm_c2c_",
	"nvgpu_edpp_multiplier_ratio", "nvgpu_nvlink_bit_error_ratio",
	"nvgpu_xid_last_timestamp_seconds", "gpusteward_collect_errors_total"}

// TestDocumentsPromQL has Prometheus parse each expression.
func TestDocumentsPromQL(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("groups:\n  - name: docs\n    rules:\n")
	n := 0
	for path, text := range documents(t) {
		for _, expr := range promql(text) {
			fmt.Fprintf(&b, "      - {record: 'docs:%d', expr: %q} # %s\n", n, expr, path)
			n++
		}
	}
	fixture.AtLeast(t, n, 80, "expressions")
	promtool(t, b.String(), "check", "rules")
}

// TestMigrationAnswers queries the expressions of docs/migration.tsv over the
// pages of simulated hosts: each must find series.
func TestMigrationAnswers(t *testing.T) {
	t.Parallel()
	text := content(t, "docs/migration.tsv")
	a := start(t, "--demo=workloads", "--config.file="+fixture.Config(t,
		"collectors: {per_process: true, per_link: true, enable: [clocks_app, gpm_media]}\nmetrics: {profile: all}\n")).ready()
	eventually(t, "the agent has judged, and has differences of GPM's samples", func() bool {
		s := a.scrape()
		return s.family("nvgpu_health_status") != nil && s.family("nvgpu_gpm_media_activity_ratio") != nil &&
			s.family("nvgpu_gpm_nvlink_bytes_per_second") != nil
	})
	_, page := a.get("/metrics")
	pages := []string{page}
	for _, golden := range []string{"models", "mig", "vgpu"} {
		page := content(t, "collectors/testdata/"+golden+".prom")
		pages = append(pages, page)
	}
	var b strings.Builder
	b.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	for i, page := range pages {
		for key, v := range parse(page) {
			name, labels, _ := strings.Cut(key, "{")
			if !strings.HasPrefix(name, "nvgpu_") && !strings.HasPrefix(name, "gpusteward_collect") {
				continue
			}
			labels = strings.Trim(strings.TrimSuffix(labels, "}")+fmt.Sprintf(",instance=%q", fmt.Sprint(i)), ",")
			more := 0
			if strings.HasSuffix(name, "_total") {
				more = 1
			}
			fmt.Fprintf(&b, "      - {series: %q, values: '%v+%dx5'}\n", name+"{"+labels+"}", v, more)
		}
	}
	b.WriteString("    promql_expr_test:\n")
	n := 0
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		expr := strings.Split(line, "\t")[2]
		if expr == "" || slices.ContainsFunc(notAnswered, func(name string) bool {
			return strings.Contains(expr, name)
		}) {
			continue
		}
		n++
		fmt.Fprintf(&b, "      - {expr: %q, eval_time: 5m, exp_samples: [{labels: '{}', value: 1}]}\n",
			"count("+expr+") > bool 0")
	}
	fixture.AtLeast(t, n, 125, "expressions") // the others are those of names that are served, for TestMigrationOfDCGM
	promtool(t, b.String(), "test", "rules")
}

// TestFilesOfTargets has Prometheus's own tool check the shipped list of hosts.
func TestFilesOfTargets(t *testing.T) {
	t.Parallel()
	text := content(t, "deploy/prometheus/file_sd.yml")
	here := fixture.Value(filepath.Abs("deploy/prometheus/targets.yml"))(t)
	config := fixture.Config(t, strings.ReplaceAll(text, "/etc/prometheus/gpusteward/*.yml", here))
	out, err := exec.Command("promtool", "check", "service-discovery", "--timeout=2s", config, "gpusteward").Output()
	var found []struct{ Labels map[string]string }
	fixture.Stop(t, err != nil || json.Unmarshal(out, &found) != nil || len(found) != 4,
		"promtool (make tools installs it): %v\n%s", err, out)
	for _, f := range found {
		l := f.Labels
		fixture.If(t, l["instance"]+":9836" != l["__address__"] || l["job"] != "gpusteward" || l["cluster"] == "" ||
			l["rack"] == "", "a host has the labels %v", l)
	}
}
