//go:build timed

package enforcer_test

import (
	"slices"
	"testing"
	"time"
)

func TestShares(t *testing.T) {
	for _, c := range []struct {
		name    string
		demands []demand
	}{
		{"30-70", []demand{kernels(30, 200), kernels(70, 200)}},
		{"10-90", []demand{kernels(10, 200), kernels(90, 200)}},
		{"50-50 unlike kernels", []demand{kernels(50, 100), kernels(50, 1000)}},
		{"20-30-50", []demand{kernels(20, 200), kernels(30, 200), kernels(50, 200)}},
		{"30-70 graphs of 2 ms", []demand{graphs(30, 2000), graphs(70, 2000)}},
		{"30-70 graphs of 10 ms", []demand{graphs(30, 10000), graphs(70, 10000)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := saturate(t, c.name, true, 6, c.demands...).fair(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWorkConservation holds that a sleeping tenant leaves its GPU to the other
// one: together they use it all.
func TestWorkConservation(t *testing.T) {
	bursty := demand{50, 200 * time.Microsecond, []string{"--kernel-us=200", "--burst-ms=5", "--sleep-ms=20"}}
	saturate(t, "bursty, plain", false, 3, kernels(50, 200), bursty)
	f := saturate(t, "bursty", true, 7, kernels(50, 200), bursty)
	if busy := f.typical[0] + f.typical[1]; busy < 0.97 {
		t.Errorf("the GPU is busy %.1f %% of a typical second beside a bursty tenant, goal 97 %%", 100*busy)
	}
}

// TestCancelledThreads holds that cancelled threads inside launches give a
// tenant no more than its share: a thread that replaces a cancelled one is
// governed too.
func TestCancelledThreads(t *testing.T) {
	cancelled := kernels(20, 200)
	cancelled.options = append(cancelled.options, "--threads=2", "--cancel-ms=20")
	if err := saturate(t, "threads are cancelled", true, 5, kernels(80, 200), cancelled).fair(); err != nil {
		t.Error(err)
	}
}

// TestSmallKernels holds that tenants that are bound by their own processor run
// together: turns would halve their pace. A busy machine may halve it as well, so
// the best of five pairs of runs counts.
func TestSmallKernels(t *testing.T) {
	small := demand{50, 5 * time.Microsecond, []string{"--kernel-us=5", "--cpu-us=20"}}
	var parts []float64
	for range 5 {
		plain := saturate(t, "small kernels, plain", false, 0.7, small, small).steps
		parts = append(parts, saturate(t, "small kernels", true, 0.7, small, small).steps/plain)
	}
	if slices.Max(parts) < 0.75 {
		t.Errorf("small kernels reach %.2f of what they do ungoverned, goal 0.75", parts)
	}
}
