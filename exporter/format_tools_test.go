//go:build tools

package exporter

import (
	"bytes"
	"net/http"
	"os/exec"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"gpusteward/internal/fixture"
)

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
