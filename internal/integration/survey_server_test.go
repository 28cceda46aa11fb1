//go:build servers

package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestSurveyOfManyHosts: gpusteward fleet finds what is wrong with fleetHosts hosts of 8 GPUs in 2 s, if a real
// Prometheus has every series of them. They are copies of one simulated host, some with other values.
func TestSurveyOfManyHosts(t *testing.T) {
	installed(t, "prometheus")
	a := spawn(t, nil, "--demo=mixed").ready()
	a.sees("a verdict", func(s series) bool {
		verdict, ok := s["nvgpu_node_health_status"]
		return ok && verdict == 0
	})
	_, page := a.get("/metrics")
	with := func(page, series, value string) string {
		line := regexp.MustCompile("(?m)^(" + series + ") [^ \n]+$")
		fixture.Need(t, line.MatchString(page), true, "the page has %s", series)
		return line.ReplaceAllString(page, "$1 "+value)
	}
	lost := with(page, "nvgpu_node_health_status", "2")
	lost = with(lost, `nvgpu_alert_firing\{alert="GPULost",severity="emergency"\}`, "1")
	lost = with(lost, `nvgpu_health_check_failing\{check="gpu_lost",gpu="3",.*\}`, "1")
	hosts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, text := strings.TrimSuffix(r.URL.Path[1:], "/metrics"), page
		switch number, _ := strconv.Atoi(host); {
		case number == 3:
			text = lost
		case number == 5:
			w.WriteHeader(http.StatusInternalServerError)
		case number == 7:
			text = with(page, "gpusteward_drained", "1")
		case number >= 100 && number < 116: // those of one job, a pod each
			rank := map[bool]string{true: `rank="80",reason="absent"`, false: `rank="",reason="elsewhere"`}[number == 110]
			text += fmt.Sprintf("nvgpu_job_hang{gpu=\"0\",workload=\"pod:team/train-%[1]s\",where=\"a.py:7 in load\",%[2]s} 90\n"+
				"nvgpu_rank_collectives_total{gpu=\"0\",workload=\"pod:team/train-%[1]s\",communicator=\"c0ffee\"} 9\n", host, rank)
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, text)
	}))
	t.Cleanup(hosts.Close)
	config := "scrape_configs:\n- job_name: gpusteward\n  scrape_interval: 15s\n  static_configs:\n"
	for i := range fleetHosts {
		config += fmt.Sprintf("  - {targets: [%q], labels: {__metrics_path__: /%d/metrics, instance: node-%[2]d}}\n",
			hosts.Listener.Addr(), i)
	}
	prometheus := startServer(t, "prometheus", "--config.file="+fixture.Config(t, config),
		"--storage.tsdb.path="+filepath.Join(t.TempDir(), "data"))
	within(t, "all hosts are scraped", func() bool {
		return asksFor(t, prometheus, "count(up)", "")[""] == fleetHosts && asksFor(t, prometheus, "sum(up)", "")[""] == fleetHosts-1
	})
	best := time.Hour
	for range 5 { // other work holds it up now and then
		began := time.Now()
		status, text, said := gpusteward(t, "fleet", "--url="+prometheus)
		best = min(best, time.Since(began))
		fixture.Equal(t, status, 2, "the exit status, with %q", said)
		_, text, _ = strings.Cut(strings.ReplaceAll(text, hosts.URL, "http://fleet"), "\n")
		fixture.Golden(t, "testdata/survey.txt", text)
	}
	t.Logf("%d hosts, %d lines each: %v", fleetHosts, strings.Count(page, "\n"), best)
	fixture.AtMost(t, best, 2*time.Second, "gpusteward fleet takes")
}
