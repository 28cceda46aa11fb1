//go:build timed

package enforcer_test

import (
	"fmt"
	"testing"

	"gpusteward/internal/fixture"
)

// TestAllocationsAreNotThrottled has a program allocate and free as fast as it
// can: far from its cap, and with room for one allocation only.
func TestAllocationsAreNotThrottled(t *testing.T) {
	for name, limit := range map[string]uint64{"far from the cap": 1024 * mib, "at the cap": mib} {
		h := stub(t)
		h.govern(t, capped("tenant", limit))
		w := h.load(t, "tenant", pairs(1, 1)...)
		ready(t, w)
		w.Tell("go")
		rate := completed(t, w)
		fmt.Printf("allocations %s: %.0f pairs of alloc and free a second\n", name, rate)
		fixture.AtLeast(t, rate, 50_000, "%s: pairs of alloc and free a second", name)
	}
}
