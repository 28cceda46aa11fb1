//go:build tools

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/exporter"
	"gpusteward/internal/fixture"
)

// An inputSeries is one of a test of promtool.
type inputSeries struct {
	name   string // with labels
	sample collectors.Sample
	host   string
	values []string // "_" where it is absent
}

var (
	inputLines = regexp.MustCompile(`      - series: '(.*)'\n        values: '(.*)'\n`)
	labelPairs = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// read reads a series and its values in promtool's notation, as alerts writes them.
func (s *inputSeries) read(name, values string) {
	s.name = name
	family, labels, _ := strings.Cut(name, "{")
	for _, m := range collectors.Metrics() {
		if m.Name == family {
			s.sample = collectors.Sample{Metric: m, Labels: make([]string, len(m.Labels))}
			for _, pair := range labelPairs.FindAllStringSubmatch(labels, -1) {
				for i, l := range m.Labels {
					if l == pair[1] {
						s.sample.Labels[i] = pair[2]
					}
				}
				if pair[1] == "instance" {
					s.host = pair[2]
				}
			}
		}
	}
	for _, run := range strings.Fields(values) {
		value, n := run, 0
		if at := strings.LastIndex(run, "x"); at >= 0 {
			n, _ = strconv.Atoi(run[at+1:])
			value = strings.TrimSuffix(run[:at], "+0")
			n -= map[bool]int{true: 1}[value == "_"]
		}
		for range n + 1 {
			s.values = append(s.values, value)
		}
	}
}

// reduce leaves out of the series of a test what hosts do not show in the minimal profile.
func reduce(all []*inputSeries) {
	for at := range len(all[0].values) {
		hosts := map[string][]collectors.Sample{}
		for _, s := range all {
			if at < len(s.values) {
				if v, err := strconv.ParseFloat(s.values[at], 64); err == nil && s.sample.Metric != nil {
					s.sample.Value = v
					hosts[s.host] = append(hosts[s.host], s.sample)
				}
			}
		}
		shown := map[string]bool{}
		key := func(host string, s collectors.Sample) string { return fmt.Sprint(host, s.Metric, s.Labels) }
		for host, samples := range hosts {
			for _, s := range exporter.Minimal(samples) {
				shown[key(host, s)] = true
			}
		}
		for _, s := range all {
			if at < len(s.values) && s.sample.Metric != nil && s.values[at] != "_" && s.values[at] != "stale" &&
				!shown[key(s.host, s.sample)] {
				s.values[at] = "stale"
			}
		}
	}
}

// TestRulesLiveOnTheMinimalProfile: each alert's rule does in its promtool test what it should, with the series
// as hosts show them in the minimal profile.
func TestRulesLiveOnTheMinimalProfile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpusteward", "gpusteward-hours", "gpusteward-judgement", "fleet", "fleet-hours", "slo",
		"stragglers"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, left := t.TempDir(), 0
			fixture.Must(t, os.CopyFS(dir, os.DirFS("alerts")))
			var b strings.Builder
			tests := strings.Split(ruleFile(t, name+".rules.test.yml"), "\n  - name: ")
			for i, text := range tests {
				if i > 0 {
					b.WriteString("\n  - name: ")
				}
				var all []*inputSeries
				for _, m := range inputLines.FindAllStringSubmatch(text, -1) {
					all = append(all, new(inputSeries))
					all[len(all)-1].read(m[1], m[2])
				}
				if i > 0 {
					reduce(all)
				}
				n := -1
				b.WriteString(inputLines.ReplaceAllStringFunc(text, func(string) string {
					n++
					left += strings.Count(strings.Join(all[n].values, " "), "stale")
					return fmt.Sprintf("      - series: '%s'\n        values: '%s'\n", all[n].name, strings.Join(all[n].values, " "))
				}))
			}
			fixture.AtLeast(t, len(tests), 2, "tests")
			t.Logf("%d values left out", left)
			path := filepath.Join(dir, name+".rules.test.yml")
			fixture.Must(t, os.WriteFile(path, []byte(b.String()), 0o600))
			if out, err := exec.Command("promtool", "test", "rules", path).CombinedOutput(); err != nil {
				t.Errorf("promtool (make tools installs it): %v\n%.4000s", err, out)
			}
		})
	}
}
