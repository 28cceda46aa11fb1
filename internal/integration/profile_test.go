package integration

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// TestMinimalProfile: of a simulated host, the minimal profile has every metric of an alert's rule that the
// profile all has, and at most 60 series of a GPU beside those of tenants and workloads.
func TestMinimalProfile(t *testing.T) {
	t.Parallel()
	rules := map[string]bool{}
	name := regexp.MustCompile(`\b(nvgpu|gpusteward)_\w+`)
	for _, file := range []string{"gpusteward", "gpusteward-judgement", "fleet", "slo", "stragglers"} {
		for _, expr := range regexp.MustCompile(`(?s) expr: (.*?)\n +(- |\w+:)`).FindAllString(
			content(t, "alerts/"+file+".rules.yml"), -1) {
			for _, n := range name.FindAllString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expr, ""), -1) {
				rules[n] = true
			}
		}
	}
	fixture.AtLeast(t, len(rules), 80, "metrics in rules")
	// the rules take series of them that these GPUs do not have
	delete(rules, "gpusteward_unsupported")
	delete(rules, "nvgpu_quota_backend_info")
	owned := regexp.MustCompile(`\b(tenant|workload)="[^"]`)
	gpu := regexp.MustCompile(`[{,]gpu="([^"]+)"`)
	for _, scenario := range []string{"demo", "models"} {
		file := fixture.Config(t, "metrics: {profile: all}\n")
		a := spawn(t, nil, "--demo="+scenario, "--config.file="+file).ready()
		var all, minimal series
		a.sees("judged GPUs", func(s series) bool {
			all = s
			return len(s.family("nvgpu_health_status")) >= 8 && len(s.family("nvgpu_utilization_ratio")) >= 8
		})
		fixture.AtLeast(t, len(all.family("nvgpu_xid_errors_total", `gpu="0"`)), 50, "counters of XIDs that did not happen")
		fixture.Must(t, os.WriteFile(file, []byte("metrics: {profile: minimal}\n"), 0o600))
		a.hup()
		a.sees("the profile, after the next reading", func(s series) bool {
			minimal = s
			return len(s) > 0 && len(s.family("go_goroutines"))+len(s.family("nvgpu_xid_errors_total")) == 0
		})
		told, count := map[string]bool{}, map[string]int{}
		for key := range minimal {
			told[name.FindString(key)] = true
			if of := gpu.FindStringSubmatch(key); of != nil && !owned.MatchString(key) {
				count[of[1]]++
				fixture.AtMost(t, count[of[1]], 60, "%s: series of GPU %s", scenario, of[1])
			}
		}
		fixture.AtLeast(t, len(count), 8, "GPUs of %s", scenario)
		for key := range all {
			if n, _, _ := strings.Cut(key, "{"); rules[n] {
				fixture.Equal(t, told[n], true, "%s: minimal has %s", scenario, n)
			}
		}
		a.endsWell()
	}
}
