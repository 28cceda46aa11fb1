package derived

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// TestComparisonWithPartners has five GPUs in one job, one of which differs by degrees. While its load is similar, its
// clock, memory clock and work are compared. While it falls behind, only its work is.
func TestComparisonWithPartners(t *testing.T) {
	t.Parallel()
	const all, withoutMemory = "memory_clock memory_work sm_clock work work_behind", "memory_clock sm_clock work work_behind"
	for name, c := range map[string]struct {
		one  map[int]float64
		job  string // of the one that differs; empty: none
		want string
	}{
		"the same":                    {nil, "job", all},
		"another job":                 {nil, "other", ""},
		"no job":                      {nil, "", ""},
		"a little more memory":        {map[int]float64{memoryUsed: 48.4e9, memoryFree: 36.6e9}, "job", all},
		"more memory":                 {map[int]float64{memoryUsed: 48.6e9, memoryFree: 36.4e9}, "job", ""},
		"a little less used":          {map[int]float64{utilization: .86}, "job", all},
		"less used":                   {map[int]float64{utilization: .84}, "job", "work_behind"},
		"hardly used":                 {map[int]float64{utilization: .03}, "job", "work_behind"},
		"idle":                        {map[int]float64{utilization: .02}, "job", ""},
		"a clock that is a bit lower": {map[int]float64{smClock: 1890e6}, "job", all},
		"a lower clock":               {map[int]float64{smClock: 1880e6}, "job", "memory_clock sm_clock"},
		"at its limit, alone":         {map[int]float64{power: 640}, "job", "memory_clock memory_work work work_behind"},
		"another limit":               {map[int]float64{powerLimit: 500}, "job", ""},
		"no activity":                 {map[int]float64{smActivity: math.NaN()}, "job", withoutMemory},
		"other activity":              {map[int]float64{smActivity: .6}, "job", withoutMemory},
	} {
		r := newRig(5)
		for i, g := range r.gpus {
			job := "job"
			if i == 0 {
				job = c.job
				for input, v := range c.one {
					g.values[input] = v
				}
			}
			if job != "" {
				r.extra = append(r.extra, residing(g, job, 1e9))
			}
		}
		r.step(3*time.Minute, nil)
		var got []string
		for _, signal := range PartnerSignals {
			z, ratio := r.get(PeerZScore, 0, signal), r.get(PeerDeviationRatio, 0, signal)
			if usable(z) {
				got = append(got, signal)
			}
			fixture.Equal(t, usable(z), usable(ratio),
				"%s, %s: a score of %g and a ratio of %g", name, signal, z, ratio)
		}
		slices.Sort(got)
		fixture.Equal(t, strings.Join(got, " "), c.want, "%s: compared by", name)
	}
	r := newRig(5) // no job is known
	r.step(3*time.Minute, nil)
	fixture.If(t, usable(r.get(PeerZScore, 0, "work_behind")) || !usable(r.get(PeerZScore, 0, "work")),
		"GPUs without jobs are behind each other")
}

// TestLessWorkShowsTwice holds that a GPU's work is measured by power or
// activity, whichever is closer to the partners'.
func TestLessWorkShowsTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ power, activity, ratio float64 }{
		{500, .8, 0}, {400, .8, 0}, {500, .6, 0}, {400, .4, -.2}, {250, .6, -.25}, {250, math.NaN(), -.5},
	} {
		r := newRig(5)
		r.gpus[0].values[power], r.gpus[0].values[smActivity] = c.power, c.activity
		r.step(3*time.Minute, nil)
		if got := r.get(PeerDeviationRatio, 0, "work"); far(got, c.ratio, 1e-9) {
			t.Errorf("%g W and an activity of %g: %g, want %g", c.power, c.activity, got, c.ratio)
		}
	}
}

// TestIncreaseOfACounter checks the increase between two readings of a counter.
func TestIncreaseOfACounter(t *testing.T) {
	for _, c := range []struct {
		first, second float64
		after         time.Duration
		by            float64 // -1: unknown
	}{{5, 5, step, 0}, {5, 9, step, 4}, {0, 9, time.Millisecond, 9}, {5, 4, step, -1}, {5, 9, 0, -1}, {5, 9, -step,
		-1}} {
		var k counter
		by, _ := k.rise(c.first, birth)
		fixture.If(t, usable(by), "the first look shows %g", by)
		by, over := k.rise(c.second, birth.Add(c.after))
		fixture.If(t, !same(by, c.by) || over != c.after, "%+v: it rose by %g over %v", c, by, over)
		by, _ = k.rise(c.second+2, birth.Add(c.after+step))
		fixture.If(t, by != 2, "%+v: and then by %g, want 2", c, by)
	}
}

// TestFlopsBelongToOneWorkload gives a GPU's operations to the workload that uses it alone, and to none of two.
func TestFlopsBelongToOneWorkload(t *testing.T) {
	for _, c := range []struct {
		users []string
		want  float64
	}{{nil, 0}, {[]string{"a"}, 5e14}, {[]string{"a", "b"}, 0}} {
		d := New()
		samples := []collectors.Sample{{Metric: collectors.Up, Labels: []string{"0", "GPU-0"}, Value: 1},
			{Metric: activity.GPMActivity, Labels: []string{"0", "GPU-0", "sm"}, Value: 0.9},
			{Metric: activity.GPMFlops, Labels: []string{"0", "GPU-0"}, Value: 5e14}}
		for _, user := range c.users {
			samples = append(samples, collectors.Sample{Metric: workloads.WorkloadMemory,
				Labels: []string{"0", "GPU-0", user, ""}, Value: 1e9})
		}
		s := NewSnapshot(samples)
		d.Derive(s, time.Unix(1e9, 0))
		sum := 0.0
		for _, sample := range s.Of(JobFlops) {
			sum += sample.Value
			fixture.Equal(t, sample.Labels[2], "a", "of")
		}
		fixture.Equal(t, sum, c.want, "%v", c.users)
	}
}
