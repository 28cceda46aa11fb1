package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestSeriesOfASignal checks the conditions on a label.
func TestSeriesOfASignal(t *testing.T) {
	for values, want := range map[string][]string{"a": {"a"}, "a|b": {"a", "b"}, "a.*": {"a", "ab"},
		"b|a.*": {"a", "ab", "b"}, ".*": {"", "a", "ab", "b", "c"}, "": {""}} {
		m := match{values: strings.Split(values, "|")}
		for _, v := range []string{"", "a", "ab", "b", "c"} {
			fits := false
			for _, w := range want {
				fits = fits || v == w
			}
			fixture.Equal(t, m.fits(v), fits, "%q fits %q", v, values)
		}
	}
	for want, where := range map[string][]string{
		`nvgpu_fan_speed_ratio: it has no label "link", but ["gpu" "uuid" "fan"]`: {"link", "1"},
		`nvgpu_fan_speed_ratio: it has no label "link"`:                           {"by", "link"},
		`nvgpu_fan_speed_ratio: "fan" is no part of an entity; by takes one of`:   {"by", "fan"},
		`nvgpu_fan_speed_ratio: "fan" has no value`:                               {"fan", "1", "fan"},
	} {
		func() {
			defer func() { fixture.Contains(t, fmt.Sprint(recover()), "a signal of "+want, "the program ends with") }()
			Value(device.FanSpeed, where...)
		}()
	}
}

// TestExamplesAreExact holds that an example at a threshold meets it to the last bit.
func TestExamplesAreExact(t *testing.T) {
	a, b := Value(collectors.Up), Value(device.PerformanceState)
	for _, g := range []*Signal{Sub(a, b), Div(a, b)} {
		for _, v := range []float64{0, 1, 5, .05, .07, .3, .33, 1e-12, 12.7} {
			got := readings(g, newMemory(birth), shownBy(g.Example(someone(g), 0, v), 0))
			fixture.EqualSlices(t, got, []reading{{someone(g), v}}, "an example of %g for %s", v, g)
		}
	}
}

// TestSignalsForPrometheus checks signals as PromQL.
func TestSignalsForPrometheus(t *testing.T) {
	for want, g := range map[string]*Signal{
		"nvgpu_up": Value(collectors.Up),
		"max without (engine) (nvgpu_utilization_ratio)":                Value(activity.Utilization),
		`max without (engine) (nvgpu_utilization_ratio{engine="gpu"})`:  Value(activity.Utilization, "engine", "gpu"),
		`sum without (engine) (nvgpu_utilization_ratio{engine=~"a|b"})`: Sum(activity.Utilization, "engine", "a|b"),
		"nvgpu_nvlink_up":                      Value(links.NVLinkUp, "by", "link"),
		"(nvgpu_up / nvgpu_performance_state)": Div(Value(collectors.Up), Value(device.PerformanceState)),
		"(nvgpu_up - nvgpu_performance_state)": Sub(Value(collectors.Up), Value(device.PerformanceState)),
	} {
		fixture.Equal(t, g.String(), want, "string")
	}
	for d, want := range map[time.Duration]string{24 * time.Hour: "1d", 25 * time.Hour: "1d1h", time.Hour: "1h",
		90 * time.Minute: "1h30m", 90 * time.Second: "1m30s", 1500 * time.Millisecond: "1s500ms", 48 * time.Hour: "2d",
		time.Second: "1s"} {
		fixture.Equal(t, PromDuration(d), want, "%v is", d)
	}
}

// TestSignalsAreRead reads signals from a host of two GPUs, the second of which has fewer series.
func TestSignalsAreRead(t *testing.T) {
	s := derived.NewSnapshot([]collectors.Sample{on("0", collectors.Up, 1), on("1", collectors.Up, 0),
		on("0", activity.Utilization, .25, "gpu"), on("0", activity.Utilization, .5, "memory"),
		on("0", activity.Utilization, .125, "encoder"), on("1", activity.Utilization, .75, "gpu"),
		on("0", device.PerformanceState, 8), on("0", device.TemperatureMargin, 4),
		on("1", device.TemperatureMargin, 0)})
	margin, state := Value(device.TemperatureMargin), Value(device.PerformanceState)
	for name, c := range map[string]struct {
		signal *Signal
		want   [2]string
	}{
		"the largest":             {Value(activity.Utilization), [2]string{"0.5", "0.75"}},
		"one":                     {Value(activity.Utilization, "engine", "gpu"), [2]string{"0.25", "0.75"}},
		"one that is not there":   {Value(activity.Utilization, "engine", "decoder"), [2]string{"", ""}},
		"the sum":                 {Sum(activity.Utilization), [2]string{"0.875", "0.75"}},
		"the sum of two":          {Sum(activity.Utilization, "engine", "gpu|memory"), [2]string{"0.75", "0.75"}},
		"or zero":                 {Value(device.PerformanceState).OrZero(), [2]string{"8", "0"}},
		"a part":                  {Div(state, margin), [2]string{"2", ""}},
		"a part of nothing":       {Div(margin, margin), [2]string{"1", ""}},
		"a difference":            {Sub(margin, Value(collectors.Up)), [2]string{"3", "0"}},
		"a difference of nothing": {Sub(state, margin), [2]string{"4", ""}},
	} {
		read := readings(c.signal, newMemory(birth), s)
		for gpu, want := range c.want {
			got := ""
			for _, r := range read {
				if r.Entity == gpuEntity(fmt.Sprint(gpu)) {
					got += fmt.Sprint(r.value)
				}
			}
			fixture.Equal(t, got, want, "%s of GPU %d", name, gpu)
		}
	}
}

// TestSeriesIsFoundFromAnyPosition holds that a series is found from any position, and where the next search begins.
func TestSeriesIsFoundFromAnyPosition(t *testing.T) {
	var all answers
	for i := range 3 {
		all = append(all, reading{gpuEntity(fmt.Sprint(i)), float64(10 * i)})
	}
	for from := range 4 {
		for i := range 3 {
			if v, next, ok := all.from(from, gpuEntity(fmt.Sprint(i))); !ok || v != float64(10*i) || next != i+1 {
				t.Errorf("GPU %d from %d: %g, then %d", i, from, v, next)
			}
		}
		if _, next, ok := all.from(from, gpuEntity("9")); ok || next != from {
			t.Errorf("one that is not there from %d: %v, then %d", from, ok, next)
		}
	}
	if _, _, ok := answers(nil).from(0, incident.Entity{}); ok {
		t.Error("nothing has an answer")
	}
}

// TestCountersAreSweptEachHour checks how long an absent counter is remembered: for an hour, for as long as a window
// is, or for life. The sweep comes with the first evaluation after more than an hour: here each 70 minutes.
func TestCountersAreSweptEachHour(t *testing.T) {
	const long = 3 * time.Hour
	for name, c := range map[string]struct {
		signal   *Signal
		after    time.Duration // it returns, and has risen by 5
		want     float64
		sums     int // entities just before the sweep
		counters int
	}{
		"an hour":                  {Increase(faults.ECCErrors, time.Minute), time.Hour, 5, 2, 2},
		"more":                     {Increase(faults.ECCErrors, time.Minute), time.Hour + step, 0, 1, 1},
		"a long window":            {Increase(faults.ECCErrors, long), 140 * time.Minute, 5, 2, 2},
		"more than a long window":  {Increase(faults.ECCErrors, long), 210 * time.Minute, 0, 1, 1},
		"for life":                 {Increase(faults.ECCErrors, time.Minute).Lifetime(), 2 * time.Hour, 5, 1, 2},
		"for life, and for a long": {Increase(faults.ECCErrors, long).Lifetime(), 2 * long, 5, 1, 2},
	} {
		m := newMemory(birth)
		at := func(after time.Duration, gpus ...string) answers {
			m.now = birth.Add(after)
			var all []collectors.Sample
			for _, gpu := range gpus {
				v := 100.
				if after > 0 && gpu == "1" {
					v += 5
				}
				all = append(all, on(gpu, faults.ECCErrors, v, "corrected", "volatile", "all"))
			}
			return readings(c.signal, m, derived.NewSnapshot(all))
		}
		at(0, "0", "1")
		for passed := 10 * time.Minute; passed < c.after; passed += 10 * time.Minute {
			at(passed, "0")
		}
		at(c.after, "0")
		if counted := m.counted[c.signal]; len(counted.order) != c.sums || len(counted.sums) != c.sums ||
			len(counted.last) != c.counters {
			t.Errorf("%s: %d counters of %d entities are remembered, want %d of %d", name, len(counted.last),
				len(counted.order), c.counters, c.sums)
		}
		if v, ok := at(c.after, "0", "1").of(gpuEntity("1")); !ok || v != c.want {
			t.Errorf("%s: it rose by %g, want %g", name, v, c.want)
		}
	}
}
