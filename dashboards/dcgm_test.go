//go:build servers

package dashboards

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestQueriesFromDCGM scrapes a dcgm-exporter as deploy/prometheus/dcgm_exporter.yml says, and no
// agent: the panels that show GPM have its data.
func TestQueriesFromDCGM(t *testing.T) {
	t.Parallel()
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, p := range profile {
			for _, more := range []string{"", `,GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"`} {
				fmt.Fprintf(w, "%s{gpu=\"0\",UUID=\"GPU-0\",pci_bus_id=\"1\",device=\"nvidia0\",modelName=\"NVIDIA A100\","+
					"Hostname=\"node\"%s} %v\n", p.dcgm.Name, more, map[bool]string{true: "0.5", false: "9"}[more == ""])
			}
		}
		fmt.Fprintln(w, `DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} 40`)
	}))
	defer exporter.Close()
	text := fixture.Value(os.ReadFile("../deploy/prometheus/dcgm_exporter.yml"))(t)
	dir, address := t.TempDir(), fixture.FreeAddress(t)
	targets, config := filepath.Join(dir, "targets.yml"), filepath.Join(dir, "prometheus.yml")
	for name, text := range map[string]string{
		targets: fmt.Sprintf("- targets: [%q]\n", strings.TrimPrefix(exporter.URL, "http://")),
		config: strings.NewReplacer("/etc/prometheus/dcgm-exporter/*.yml", targets, "scrape_interval: 15s",
			"scrape_interval: 1s").Replace(string(text)),
	} {
		fixture.Must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	launchPrometheus(t, "prometheus", config, address)
	s := server{"http://" + address, "127.0.0.1"}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	chosen := choice{"cluster": ".*", "job": "gpusteward", "instance": "127.0.0.1", "gpu": ".*"}
	shown := 0
	for _, d := range committed(t) {
		for _, a := range queriesOf(t, d) {
			if !strings.Contains(a.expr, "DCGM_FI_PROF_") || strings.Contains(a.expr, "nvgpu_memory_bandwidth") {
				continue
			}
			shown++
			a.instant = true
			for {
				list, err := s.ask(ctx, a, chosen)
				fixture.Stop(t, err != nil, "%v: %v", a, err)
				if len(list) > 0 {
					for _, one := range list {
						fixture.Equal(t, one.Value[1], "0.5", "%v: %v", a, one)
					}
					break
				}
				select {
				case <-ctx.Done():
					t.Fatalf("%v: no data", a)
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
	}
	fixture.AtLeast(t, shown, 6, "… panels fall back to dcgm-exporter")
	for _, expr := range []string{"DCGM_FI_DEV_GPU_TEMP", `{job="gpusteward",__name__!~"DCGM_FI_PROF_.*"}`} {
		fixture.AtMost(t, len(fixture.Value(s.ask(ctx, asked{expr: expr, instant: true}, chosen))(t)), 0, "%s", expr)
	}
}
