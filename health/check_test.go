package health

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/internal/fixture"
)

// TestLevelForPrometheus checks the inputs of rules: the expression, the time
// for which it must hold before Prometheus fires, and the agent's delay.
func TestLevelForPrometheus(t *testing.T) {
	const hot = "nvgpu_temperature_margin_celsius < 5"
	when := Value(device.TemperatureMargin).Below(5, 8)
	for _, c := range []struct {
		l           Level
		says, expr  string
		wait, delay time.Duration
	}{
		{Level{When: when}, "at once", hot, 0, 0},
		{Level{When: when, For: of(6, 6)}, "6 of 6 in 1m", hot, 50 * time.Second, 50 * time.Second},
		{Level{When: when, For: of(3, 3).every(time.Minute)}, "3 of 3 in 3m", hot, 2 * time.Minute, 2 * time.Minute},
		{Level{When: when, For: of(3, 5)}, "3 of 5 in 50s", "nvgpu_temperature_margin_celsius and (count_over_time((" +
			hot + ")[50s:10s]) >= 3)", 0, 20 * time.Second},
		{Level{When: when, For: of(2, 90).every(time.Minute)}, "2 of 90 in 1h30m",
			"nvgpu_temperature_margin_celsius and (count_over_time((" + hot + ")[1h30m:1m]) >= 2)", 0, time.Minute},
		{Level{When: when.And(Value(collectors.Up).Not(0))}, "at once", hot + " and (nvgpu_up != 0)", 0, 0},
		{Level{When: when.And(Value(collectors.DriverUp).Is(1))}, "at once", hot +
			" and ignoring (gpu, uuid) (gpusteward_driver_up == 1)", 0, 0},
		{Level{When: Value(links.NVLinkUp, "by", "link").AtMost(.5).And(Value(collectors.Up).AtLeast(1))},
			"at once", "nvgpu_nvlink_up <= 0.5 and ignoring (link) (nvgpu_up >= 1)", 0, 0},
	} {
		if says, expr := c.l.For.String(), c.l.Expr(); says != c.says || expr != c.expr || c.l.Wait() != c.wait ||
			c.l.Delay() != c.delay {
			t.Errorf("%q, %q, %v, %v; want %+v", says, expr, c.l.Wait(), c.l.Delay(), c)
		}
	}
}

// TestConditions checks each comparison on both sides of its thresholds, and the order of severity.
func TestConditions(t *testing.T) {
	g := Value(device.TemperatureMargin)
	for _, c := range []struct {
		Condition
		words      string
		yes, no    []float64
		worst      float64 // of 4, 6 and 5, in this order
		set, clear float64
	}{
		{g.Above(5, 3), "above 5", []float64{5.1, 9}, []float64{5, 4}, 6, 5, 3},
		{g.AtLeast(5), "at least 5", []float64{5, 9}, []float64{4.9, 4}, 6, 5, 5},
		{g.Below(5, 7), "below 5", []float64{4.9, -1}, []float64{5, 6}, 4, 5, 7},
		{g.AtMost(5), "at most 5", []float64{5, -1}, []float64{5.1, 6}, 4, 5, 5},
		{g.Is(5), "is 5", []float64{5}, []float64{4.9, 5.1}, 5, 5, 5},
		{g.Not(5), "is not 5", []float64{4.9, 5.1}, []float64{5}, 5, 5, 5},
	} {
		fixture.Equal(t, c.Words(), "`nvgpu_temperature_margin_celsius` "+c.words, "words")
		for want, values := range map[bool][]float64{true: c.yes, false: c.no} {
			for _, v := range values {
				fixture.Equal(t, c.holds(v, c.Threshold), want, "%s of %g holds", c.words, v)
			}
		}
		worst := 4.
		for _, v := range []float64{6, 5} {
			if c.worse(v, worst) {
				worst = v
			}
		}
		fixture.If(t, worst != c.worst || c.worse(worst, worst) || c.Threshold != c.set || c.Clear != c.clear,
			"%s: the worst of 4, 6 and 5 is %g; %+v", c.words, worst, c.Condition)
	}
	want := "`nvgpu_temperature_margin_celsius` above 1, while `nvgpu_temperature_margin_celsius` below 2e-05"
	fixture.Equal(t, g.Above(1).And(g.Below(.00002)).Words(), want, "above")
	fixture.Equal(t, g.Above(123456789).Words(), "`nvgpu_temperature_margin_celsius` above 123456789", "a large number")
}

// TestCheckNamesItsMetrics holds that the metrics of a check include those
// of its additional conditions, for each level.
func TestCheckNamesItsMetrics(t *testing.T) {
	c := &Check{Levels: []Level{
		{When: Value(device.TemperatureMargin).Below(5).
			And(Value(collectors.Up).Is(1).And(Value(device.Power, "scope", "gpu").Above(9)))},
		{When: Value(device.Temperature).Above(5)},
	}}
	got := ""
	for _, m := range c.Metrics() {
		got += m.Name + " "
	}
	fixture.Equal(t, got, "nvgpu_temperature_margin_celsius nvgpu_up nvgpu_power_watts nvgpu_temperature_celsius ", "it is")
	for id, want := range map[string]bool{"nvlink_down": false, "xid_fatal": true} {
		fixture.Equal(t, fixture.Value(Named(id))(t).Holds(), want, "only a reset ends %s:", id)
	}
}
