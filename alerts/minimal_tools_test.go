//go:build tools

package alerts

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/exporter"
	"gpusteward/internal/fixture"
)

// sample returns a series as a sample, and its host; the metric is nil if it is none of ours.
func (s series) sample() (one collectors.Sample, host string) {
	name, labels, _ := strings.Cut(s.name, "{")
	for _, m := range collectors.Metrics() {
		if m.Name == name {
			one = collectors.Sample{Metric: m, Labels: make([]string, len(m.Labels))}
		}
	}
	for _, pair := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(labels, -1) {
		if pair[1] == "instance" {
			host = pair[2]
		} else if one.Metric != nil && slices.Contains(one.Metric.Labels, pair[1]) {
			one.Labels[slices.Index(one.Metric.Labels, pair[1])] = pair[2]
		}
	}
	return one, host
}

// minimal returns the test with the series as hosts show them in the minimal profile, and how many values it leaves out.
func (t ruleTest) minimal() (same ruleTest, left int) {
	same = t
	same.series = slices.Clone(t.series)
	of, samples, longest := make([]string, len(t.series)), make([]collectors.Sample, len(t.series)), 0
	for i, s := range t.series {
		samples[i], of[i] = s.sample()
		same.series[i].values = slices.Clone(s.values)
		longest = max(longest, len(s.values))
	}
	for at := range longest {
		hosts, there, shown := map[string][]collectors.Sample{}, map[int]string{}, map[string]bool{}
		for i, s := range samples {
			if values := t.series[i].values; s.Metric != nil && at < len(values) && !math.IsNaN(values[at]) {
				s.Value = values[at]
				hosts[of[i]] = append(hosts[of[i]], s)
				there[i] = of[i] + s.Metric.Name + strings.Join(s.Labels, ",")
			}
		}
		for host, all := range hosts {
			for _, s := range exporter.Minimal(all) {
				shown[host+s.Metric.Name+strings.Join(s.Labels, ",")] = true
			}
		}
		for i, key := range there {
			if !shown[key] {
				same.series[i].values[at] = math.NaN()
				left++
			}
		}
	}
	return same, left
}

// TestRulesLiveOnTheMinimalProfile has promtool run each alert's test with the series that the minimal profile
// leaves: the rule does the same.
func TestRulesLiveOnTheMinimalProfile(t *testing.T) {
	t.Parallel()
	_, checks := ofChecks(false)
	_, judgement := ofChecks(true)
	_, fleet := ofFleet()
	dir, left := t.TempDir(), 0
	fixture.Must(t, os.CopyFS(dir, os.DirFS(".")))
	for rules, tests := range map[string][]ruleTest{"gpusteward": checks, "gpusteward-judgement": judgement, "fleet": fleet,
		"slo.rules.yml, objectives": {sloTest()}, "stragglers": {stragglerTest()}} {
		paced := map[pace][]ruleTest{}
		for _, test := range tests {
			reduced, n := test.minimal()
			paced[test.pace] = append(paced[test.pace], reduced)
			left += n
		}
		for p, mine := range paced {
			if strings.HasPrefix(rules, "slo") { // as its own test: days are long
				p = pace(sloStep)
			}
			path := filepath.Join(dir, "minimal.yml")
			fixture.Must(t, os.WriteFile(path, []byte(testFile(rules+".rules.yml", p, mine)), 0o600))
			promtool(t, append([]string{"test", "rules"}, byAlert(t, path)...)...)
		}
	}
	fixture.AtLeast(t, left, 100, "values that the profile leaves out")
}
