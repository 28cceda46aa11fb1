//go:build timed

package enforcer_test

import (
	"fmt"
	"testing"
)

// TestGangs has two tenants, each with a rank on each of two GPUs. The ranks
// wait for one another. A gang must not wait for itself: this costs three in
// four steps if each GPU is shared separately.
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
			return fmt.Errorf("two gangs reach %.0f %% of what they do ungoverned, goal 75 %%; %d gangs found",
				100*governed/plain, gangs)
		}
		return nil
	}))
}

// TestNothingHangs runs programs whose work waits for a later launch of theirs,
// beside another tenant.
func TestNothingHangs(t *testing.T) {
	for recipe := range rounds {
		t.Run(recipe, func(t *testing.T) {
			t.Setenv("GS_STUB_GPUS", "2")
			attempt(t, onStub(t, func() error { return nothingHangs(t, stub(t), recipe) }))
		})
	}
}
