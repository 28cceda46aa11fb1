//go:build timed

package enforcer_test

import (
	"fmt"
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
			attempt(t, onStub(t, func() error { return saturate(t, c.name, true, *shareSeconds, c.demands...).fair() }))
		})
	}
}

// TestWorkConservation holds that a sleeping tenant leaves its GPU to the other
// one: together they use it all.
func TestWorkConservation(t *testing.T) {
	bursty := demand{50, 200 * time.Microsecond, []string{"--kernel-us=200", "--burst-ms=5", "--sleep-ms=20"}}
	attempt(t, onStub(t, func() error {
		saturate(t, "bursty, plain", false, 3, kernels(50, 200), bursty)
		f := saturate(t, "bursty", true, 5, kernels(50, 200), bursty)
		if f.rate < 0.97 {
			return fmt.Errorf("the GPU is busy %.1f %% of the time beside a bursty tenant, goal 97 %%", 100*f.rate)
		}
		return nil
	}))
}

// TestCancelledThreads holds that cancelled threads inside launches give a
// tenant no more than its share: a thread that replaces a cancelled one is
// governed too.
func TestCancelledThreads(t *testing.T) {
	cancelled := kernels(20, 200)
	cancelled.options = append(cancelled.options, "--threads=2", "--cancel-ms=20")
	attempt(t, onStub(t, func() error {
		return saturate(t, "threads are cancelled", true, 4, kernels(80, 200), cancelled).fair()
	}))
}

// TestSmallKernels holds that tenants that are bound by their own processor run
// together: turns would halve their pace.
func TestSmallKernels(t *testing.T) {
	small := demand{50, 5 * time.Microsecond, []string{"--kernel-us=5", "--cpu-us=20"}}
	attempt(t, onStub(t, func() error {
		var plain, governed []float64
		for range 2 {
			plain = append(plain, saturate(t, "small kernels, plain", false, 2, small, small).steps)
			governed = append(governed, saturate(t, "small kernels", true, 2, small, small).steps)
		}
		if part := mean(governed) / mean(plain); part < 0.95 {
			return fmt.Errorf("small kernels reach %.1f %% of what they do ungoverned, goal 95 %%", 100*part)
		}
		return nil
	}))
}
