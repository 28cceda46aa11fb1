//go:build tools

package exporter

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"gpusteward/collectors"
)

// TestMigrationOfDCGM has Prometheus compute each of dcgm-exporter's names from
// /metrics by the page's expression, and compares the result with
// /metrics/dcgm.
func TestMigrationOfDCGM(t *testing.T) {
	t.Parallel()
	var s samples
	s.host(2, 2)
	s.h100("0")
	s.h100("1")
	s.added("0")
	s.added("1")
	var b strings.Builder
	b.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	input := func(name string, labels []*dto.LabelPair, v float64) {
		var pairs []string
		for _, l := range labels {
			pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
		fmt.Fprintf(&b, "      - {series: '%s{%s}', values: '%v'}\n", name, strings.Join(pairs, ","), v)
	}
	served := server(t, func(o *Options) { o.Samples = func() []collectors.Sample { return s } })
	for _, path := range []string{"/metrics", "/metrics/dcgm"} {
		for name, f := range parse(t, request(served, "GET", path).Body) {
			if strings.HasPrefix(name, "nvgpu_") || strings.HasPrefix(name, "DCGM_") {
				for _, m := range f.GetMetric() {
					input(name, m.Label, m.GetGauge().GetValue()+m.GetCounter().GetValue())
				}
			}
		}
	}
	b.WriteString("    promql_expr_test:\n")
	n := 0
	for _, m := range migrations(t) {
		if m.of != "dcgm-default" && m.of != "dcgm-added" || m.names == "DCGM_FI_DEV_XID_ERRORS" { // no expression turns a label into a value
			continue
		}
		n++
		// Their value is a whole number if units are converted.
		fmt.Fprintf(&b, "      - expr: 'min by (gpu) (abs((%s) - on (gpu) %s) <= bool 0.5)'\n        eval_time: 0s\n "+
			"       exp_samples:\n", m.ours, m.names)
		for _, gpu := range []string{"0", "1"} {
			fmt.Fprintf(&b, "          - {labels: '{gpu=%q}', value: 1}\n", gpu)
		}
	}
	if want := 28 + len(dcgmAdded) - 1; n != want {
		t.Errorf("%d names of /metrics/dcgm compared, want %d: all but one", n, want)
	}
	file := filepath.Join(t.TempDir(), "migration.test.yml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool (make tools installs it): %v\n%s", err, out)
	}
}
