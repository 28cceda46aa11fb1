//go:build tools

package exporter

import (
	"fmt"
	"testing"
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
	if want := 28 + len(dcgmAdded) - 1; len(tests) != want {
		t.Errorf("%d names of /metrics/dcgm compared, want %d: all but one", len(tests), want)
	}
	evaluate(t, static, s, tests, "/metrics", "/metrics/dcgm")
}
