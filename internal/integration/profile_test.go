package integration

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// ruleFile returns the text of a file of alerts.
func ruleFile(t *testing.T, name string) string { return content(t, filepath.Join("alerts", name)) }

// TestMinimalProfile: of a simulated host, the minimal profile has every metric of an alert's rule that the
// profile all has, and at most 60 series of a GPU beside those of tenants and workloads.
func TestMinimalProfile(t *testing.T) {
	t.Parallel()
	rules := ""
	for _, name := range []string{"gpusteward", "gpusteward-judgement", "fleet", "slo", "stragglers"} {
		rules += ruleFile(t, name+".rules.yml")
	}
	var names []string
	for _, expr := range regexp.MustCompile(`(?s) expr: (.*?)\n +(- |\w+:)`).FindAllString(rules, -1) {
		expr = regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expr, "")
		names = append(names, regexp.MustCompile(`\b(nvgpu|gpusteward)_\w+`).FindAllString(expr, -1)...)
	}
	fixture.AtLeast(t, len(names), 100, "metrics in rules")
	owners := regexp.MustCompile(`\b(tenant|workload)="[^"]`)
	gpu := regexp.MustCompile(`[{,]gpu="([^"]+)"`)
	for _, scenario := range []string{"demo", "models"} {
		file := fixture.Config(t, "metrics: {profile: all}\n")
		a := spawn(t, nil, "--demo="+scenario, "--config.file="+file).ready()
		have := func(s series) map[string]bool {
			all := map[string]bool{}
			for key := range s {
				name, _, _ := strings.Cut(key, "{")
				all[name] = true
			}
			return all
		}
		var all, minimal series
		a.sees("judged GPUs", func(s series) bool {
			all = s
			return len(s.family("nvgpu_health_status")) >= 8 && len(s.family("nvgpu_utilization_ratio")) >= 8
		})
		fixture.AtLeast(t, len(all.family("nvgpu_xid_errors_total", `gpu="0"`)), 50, "counters of XIDs that did not happen")
		fixture.Must(t, os.WriteFile(file, []byte("metrics: {profile: minimal}\n"), 0o600))
		a.hup()
		a.sees("the profile", func(s series) bool { minimal = s; return len(s.family("go_goroutines")) == 0 })
		told, shown := have(minimal), have(all)
		// the rules take series of them that these GPUs do not have
		delete(shown, "gpusteward_unsupported")
		delete(shown, "nvgpu_quota_backend_info")
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			fixture.Equal(t, told[name], shown[name], "%s: minimal has %s", scenario, name)
		}
		count := map[string]int{}
		for key := range minimal {
			if of := gpu.FindStringSubmatch(key); of != nil && !owners.MatchString(key) {
				count[of[1]]++
			}
		}
		fixture.AtLeast(t, len(count), 8, "GPUs of %s", scenario)
		for _, id := range slices.Sorted(maps.Keys(count)) {
			fixture.AtMost(t, count[id], 60, "series of GPU %s of %s", id, scenario)
		}
		a.endsWell()
	}
}
