//go:build long

package collectors_test

import (
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/hosttest"
)

func TestNumbersBehave(t *testing.T) {
	counters := map[string]bool{}
	for _, m := range collectors.Metrics() {
		counters[m.Name] = m.Type == collectors.CounterType
	}
	for _, name := range []string{"mixed", "faults", "models", "mig"} {
		t.Run(name, func(t *testing.T) {
			c := collectors.DefaultConfig()
			c.Enable = []string{"gpm_media", "nvlink_quality"}
			hosttest.In(t, name, c, func(t *testing.T, h *collectors.Host) {
				before := map[string]float64{}
				for range 240 {
					hosttest.Advance(time.Second)
					now := hosttest.Series(h.Samples())
					for k, v := range now {
						family, _, _ := strings.Cut(k, "{")
						if was, ok := before[k]; ok && v < was && counters[family] {
							t.Fatalf("%s fell from %v to %v", k, was, v)
						}
						if strings.HasSuffix(family, "_ratio") && (v < 0 || v > 1) {
							t.Fatalf("%s = %v, want 0 to 1", k, v)
						}
					}
					before = now
				}
			})
		})
	}
}

// TestNoDuplicateSeries checks every series of every scenario.
func TestNoDuplicateSeries(t *testing.T) {
	c := collectors.DefaultConfig()
	c.PerProcess, c.PerLink = true, true
	for _, r := range collectors.All() {
		if r.OptIn {
			c.Enable = append(c.Enable, r.Name)
		}
	}
	for _, name := range scenarios.Names() {
		t.Run(name, func(t *testing.T) {
			hosttest.In(t, name, c, func(t *testing.T, h *collectors.Host) {
				for range 70 { // the slowest collectors read once a minute
					hosttest.Advance(time.Second)
					seen := map[string]bool{}
					for _, s := range h.Samples() {
						key := s.Metric.Name + "\x00" + strings.Join(s.Labels, "\x00")
						if seen[key] {
							t.Fatalf("duplicate series: %v %q", s.Metric, s.Labels)
						}
						seen[key] = true
					}
				}
			})
		})
	}
}
