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
	h := stub(t, "GS_STUB_GPUS=2")
	h.govern(t, tenant("a", 50), tenant("b", 50))
	var parts []float64
	for range 2 {
		plain := h.together(t, "", "", 2)
		parts = append(parts, h.together(t, "a", "b", 2)/plain)
	}
	gangs := uint64(0)
	for _, g := range stats(t, h.broker).GPUs {
		gangs += g.Gangs
	}
	part := percentile(parts, 0.5)
	fmt.Printf("two gangs on two GPUs: %.3f of their pace ungoverned; %d gangs found\n", part, gangs)
	if gangs == 0 || part < 0.75 {
		t.Errorf("two gangs reach %.0f %% of what they do ungoverned, goal 75 %%; %d gangs found", 100*part, gangs)
	}
}
