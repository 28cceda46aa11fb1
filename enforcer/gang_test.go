package enforcer_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// ranks starts a gang's processes, one on each of so many simulated GPUs, for a
// tenant; without one they run ungoverned.
func (h *host) ranks(t *testing.T, tenant string, gang, gpus int) (all []*worker) {
	for i := range gpus {
		all = append(all, h.load(t, tenant, "--launch=meet", "--gang="+strconv.Itoa(gang), "--ranks="+strconv.Itoa(gpus), "--rank="+strconv.Itoa(i),
			"--gpu="+strconv.Itoa(i), "--kernel-us=3000", "--kernels=10", "--seconds=5"))
	}
	return all
}

// together runs two gangs on the same GPUs and returns the steps a second of
// both.
func (h *host) together(t *testing.T, a, b string, gpus int) float64 {
	t.Helper()
	all := append(h.ranks(t, a, 1, gpus), h.ranks(t, b, 2, gpus)...)
	ready(t, all...)
	for _, w := range all {
		w.begin(1)
		w.tell("go")
	}
	sum := 0.0
	for i, w := range all {
		var at, steps, seconds float64
		if _, err := fmt.Sscanf(w.hear(t, time.Minute, "total"), "total %g %g %g", &at, &steps, &seconds); err != nil || seconds <= 0 {
			t.Fatal("a rank ended without a word", err)
		}
		if i%gpus == 0 {
			sum += steps / seconds
		}
	}
	return sum
}

// TestGangs holds that two tenants, each with a rank on each of two GPUs that
// wait for one another, do not wait for themselves: that costs three in four
// steps where each GPU is shared on its own.
func TestGangs(t *testing.T) {
	t.Setenv("GS_STUB_GPUS", "2")
	attempt(t, onStub(t, func() error {
		h := stub(t)
		h.govern(t, tenant("a", 50), tenant("b", 50))
		plain, governed := h.together(t, "", "", 2), h.together(t, "a", "b", 2)
		gangs := uint64(0)
		for _, g := range stats(t, h.broker).GPUs {
			gangs += g.Gangs
		}
		fmt.Printf("two gangs on two GPUs: %.1f steps/s, ungoverned %.1f; %d gangs found\n", governed, plain, gangs)
		if gangs == 0 || governed < 0.75*plain {
			return fmt.Errorf("two gangs reach %.0f %% of what they do ungoverned, goal 75 %%; %d gangs found", 100*governed/plain, gangs)
		}
		return nil
	}))
}

// TestNothingHangs runs programs whose work waits for work that they launch
// later, beside another tenant.
func TestNothingHangs(t *testing.T) {
	for _, recipe := range []string{"peer", "waitvalue", "hostfunc", "cross", "two"} {
		t.Run(recipe, func(t *testing.T) {
			t.Setenv("GS_STUB_GPUS", "2")
			nothingHangs(t, stub(t), recipe, 200)
		})
	}
}

// nothingHangs runs a recipe without the hook and then with it, both beside
// another program.
func nothingHangs(t *testing.T, h *host, recipe string, rounds int) {
	t.Helper()
	h.govern(t, tenant("a", 50), tenant("b", 50))
	for _, names := range [][2]string{{"", ""}, {"a", "b"}} {
		other := h.load(t, names[1], "--kernel-us=200", "--sync-every=4", "--seconds=60")
		ready(t, other)
		other.tell("go")
		w := h.start(t, names[0], path(t, "GS_RECIPES", "hook/build/stub/recipes"), recipe, strconv.Itoa(rounds), "--deadline=5")
		said := w.hear(t, 2*time.Minute, "done", "hung")
		fmt.Printf("tenant %q: %s\n", names[0], said) // NAME ROUNDS SECONDS, and the longest launch in us
		if said[:4] != "done" {
			t.Error(said)
		}
		other.kill()
	}
}
