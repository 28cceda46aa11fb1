//go:build long

package collectors_test

import (
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// seriesOf identifies the series of a sample.
func seriesOf(s collectors.Sample) string {
	return s.Metric.Name + "\x00" + strings.Join(s.Labels, "\x00")
}

func TestNumbersBehave(t *testing.T) {
	for _, name := range []string{"mixed", "faults", "models", "mig"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collectors.DefaultConfig()
			c.Enable = []string{"gpm_media", "nvlink_quality"}
			hosttest.In(t, name, c, func(t *testing.T, h *collectors.Host) {
				before := map[string]float64{}
				for range 240 {
					hosttest.Advance(time.Second)
					now := map[string]float64{}
					for _, s := range h.Samples() {
						key := seriesOf(s)
						now[key] = s.Value
						if was, ok := before[key]; ok && s.Value < was && s.Metric.Type == collectors.CounterType {
							t.Fatalf("%v%v fell from %v to %v", s.Metric, s.Labels, was, s.Value)
						}
						fixture.Stop(t, strings.HasSuffix(s.Metric.Name, "_ratio") && (s.Value < 0 || s.Value > 1),
							"%v%v = %v, want 0 to 1", s.Metric, s.Labels, s.Value)
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
			t.Parallel()
			hosttest.In(t, name, c, func(t *testing.T, h *collectors.Host) {
				for range 14 { // the slowest collectors read once a minute
					hosttest.Advance(5 * time.Second)
					seen := map[string]bool{}
					for _, s := range h.Samples() {
						key := seriesOf(s)
						fixture.Stop(t, seen[key], "duplicate series: %v %q", s.Metric, s.Labels)
						seen[key] = true
					}
				}
			})
		})
	}
}
