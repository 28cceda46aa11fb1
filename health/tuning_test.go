package health

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// internal/config/testdata/invalid has the settings that are refused.
func TestValidSettings(t *testing.T) {
	fixture.Must(t, Settings{EnableAlerts: []string{"slow_gpu", "GPUTemperatureOutlier"}, Disable: []string{"GPULemon"},
		Labels: map[string]string{"cluster": "a"}, Thresholds: map[string]map[string]string{
			"slow_gpu": {"warning": "70 %", "critical": "0.5"}, "GPUMemoryLeak": {"info": "30m"},
			"orphan_memory": {"warning": "2 GiB"}, "thermal_margin": {"warning": "-5"}, "clock_outlier": {"warning": "-10 %"}}}.Validate())
}

// TestThresholdsOfALevel holds which levels have another threshold, and where each ends.
func TestThresholdsOfALevel(t *testing.T) {
	for _, c := range []struct {
		check, severity, text string
		levels                []int // those that have it
		threshold, clear      float64
	}{
		{"thermal_throttle_ratio", "warning", "10 %", []int{0}, .10, .06}, // the other one is 2 % of 15 minutes
		{"thermal_throttle_ratio", "critical", "0.5", []int{1}, .5, .4},
		{"thermal_margin", "warning", "5", []int{2, 3, 4}, 5, 8},
		{"clock_outlier", "warning", "-10 %", []int{0}, -.10, -.06},
		{"mem_leak", "info", "30m", []int{0}, 1800, 3600},
		{"ecc_uncorrectable", "warning", "3", []int{0}, 3, 3},
		{"fan_stopped", "critical", "0", []int{0}, 0, 0},
	} {
		usual := fixture.Value(Named(c.check))(t)
		tuned := fixture.Value(usual.tuned(map[string]string{c.severity: c.text}))(t)
		for i, l := range tuned.Levels {
			want := usual.Levels[i].When
			for _, at := range c.levels {
				if at == i {
					want.Threshold, want.Clear = c.threshold, c.clear
				}
			}
			fixture.Near(t, l.When.Threshold, want.Threshold, 1e-9, "%s: level %d begins", c.check, i)
			fixture.Near(t, l.When.Clear, want.Clear, 1e-9, "%s: level %d ends", c.check, i)
		}
	}
}

// TestSettingsInForce changes what a running monitor judges, and how.
func TestSettingsInForce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := monitor(t, "", Settings{Thresholds: map[string]map[string]string{"GPUSlowOutlier": {"critical": "40 %"}}})
		m.is(on("0", collectors.Up, 1), on("0", derived.PeerClockRatio, .5), on("0", device.TemperatureMargin, -5))
		m.pass(4 * time.Minute)
		limits := func() string {
			var all []string
			for _, f := range m.Verdict().Findings {
				all = append(all, f.Check+" "+f.Severity.String()+" "+f.Limit)
			}
			return strings.Join(all, "; ")
		}
		const slow = "slow_gpu warning <= 0.9, 20 of 24 in 4m"
		fixture.Equal(t, limits(), slow+"; thermal_margin warning <= 0, 6 of 6 in 1m", "with another threshold")
		fixture.Contains(t, m.alerts(), "GPUThermalMargin", "the alerts")
		m.Configure(Settings{Disable: []string{"GPUThermalMargin"}})
		m.pass(2 * time.Minute)
		fixture.Equal(t, limits(), "slow_gpu critical <= 0.75, 6 of 6 in 1m", "without the threshold, and the other check")
		fixture.Equal(t, strings.Join(m.Verdict().Disabled, " "), "thermal_margin", "the disabled checks are")
		fixture.Equal(t, m.alerts(), "", "the alerts")
		over := m.of(func(e incident.Event) bool { return e.Check == "thermal_margin" && e.To == incident.OK })
		fixture.If(t, len(over) != 1 || !strings.HasSuffix(over[0].Message, " The check is disabled."),
			"the journal has %+v", over)
		m.Configure(Settings{})
		m.pass(2 * time.Minute)
		fixture.Contains(t, limits(), "thermal_margin warning", "enabled again")
	})
}
