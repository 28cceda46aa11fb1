package main

import (
	"math"
	"testing"
	"time"

	"gpusteward/bench/worker"
)

func TestStatistics(t *testing.T) {
	t.Parallel()
	var s worker.Series
	for i := range int64(51) { // ten steps per second, and none in the third
		s.Add(i*int64(time.Second)/10, float64(i)-min(10, max(0, float64(i)-20)))
	}
	for _, c := range []struct {
		from, to    time.Duration
		rate, worst float64
	}{
		{0, 5 * time.Second, 8, 0}, {0, time.Second / 2, 10, 10}, {time.Second / 3, 4 * time.Second / 3, 10, 10},
	} {
		rate, worst := rates(s, int64(c.from), int64(c.to))
		if math.Abs(rate-c.rate) > 1e-9 || math.Abs(worst-c.worst) > 1e-9 {
			t.Errorf("%v to %v: %g steps a second, %g in the worst one; want %g and %g", c.from, c.to, rate, worst, c.rate,
				c.worst)
		}
	}
	if m, half := confidence([]float64{1, 2, 3, 4}); m != 2.5 || math.Abs(half-2.05) > 0.01 {
		t.Errorf("%g ± %g, want 2.5 ± 2.05", m, half)
	}
	if m, half := confidence([]float64{3}); m != 3 || !math.IsNaN(half) {
		t.Errorf("%g ± %g of one value", m, half)
	}
}
