package derived

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// TestFlopsBelongToOneWorkload gives a GPU's operations to the workload that uses
// it alone, and to none of two.
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
			if sum += sample.Value; sample.Labels[2] != "a" {
				t.Errorf("of %s", sample.Labels[2])
			}
		}
		fixture.Equal(t, sum, c.want, "%v", c.users)
	}
}
