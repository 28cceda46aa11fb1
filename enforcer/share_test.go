package enforcer_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
)

// These tests measure the hook and the broker together on a simulated GPU
// that real processes share (hook/stub): what a step costs and how much memory
// there is are known there, so true shares are measured and not estimated.

func tenant(name string, weight float64) terms {
	return terms{name, broker.Quota{Weight: weight, Limit: 1}}
}

// A demand is what one tenant of a saturated GPU runs.
type demand struct {
	weight  float64
	cost    time.Duration // of a step, on the GPU
	options []string
}

func kernels(weight float64, us int) demand {
	cost := time.Duration(us) * time.Microsecond
	return demand{weight, cost, []string{"--kernel-us=" + strconv.Itoa(us)}}
}

func graphs(weight float64, us int) demand {
	cost := time.Duration(us) * time.Microsecond
	return demand{weight, cost, []string{"--launch=graph", "--kernel-us=100", "--graph-us=" + strconv.Itoa(us)}}
}

// saturate measures demands beside each other on a GPU of their own; governed
// says whether the broker shares it, or the driver.
func saturate(t *testing.T, name string, governed bool, seconds float64, demands ...demand) figure {
	t.Helper()
	h := stub(t)
	sum := 0.0
	var tenants []terms
	for i, d := range demands {
		tenants = append(tenants, tenant(fmt.Sprint("t", i), d.weight))
		sum += d.weight
	}
	if governed {
		h.govern(t, tenants...)
	}
	seconds += settle.Seconds()
	var parts []part
	for i, d := range demands {
		who := ""
		if governed {
			who = tenants[i].Name
		}
		w := h.load(t, who, append(d.options, fmt.Sprintf("--seconds=%g", seconds))...)
		parts = append(parts, part{w, "go", d.weight / sum, d.cost.Seconds()})
	}
	for _, p := range parts {
		ready(t, p.worker)
	}
	f := h.measure(t, name, seconds, parts...)
	for _, d := range demands {
		f.launch = max(f.launch, d.cost.Seconds())
	}
	f.show()
	return f
}

// slots lets experiments run side by side where there are processors for it.
var slots = make(chan struct{}, max(1, runtime.NumCPU()/2))

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

// TestWorkConservation holds that a tenant that sleeps leaves its GPU to the
// other one: together they use it all.
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

// TestCancelledThreads holds that a tenant whose threads are cancelled inside
// launches has no more than its share: the one that takes a cancelled thread's
// place is governed as that one was.
func TestCancelledThreads(t *testing.T) {
	cancelled := kernels(20, 200)
	cancelled.options = append(cancelled.options, "--threads=2", "--cancel-ms=20")
	attempt(t, onStub(t, func() error {
		return saturate(t, "threads are cancelled", true, 4, kernels(80, 200), cancelled).fair()
	}))
}

// TestSmallKernels holds that tenants that are bound by their own processor
// run together: turns would halve them.
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
