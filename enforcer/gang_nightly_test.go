//go:build nightly

package enforcer_test

import "testing"

// TestNothingIsMuchSlower compares the pace of programs whose work waits for a later launch of
// theirs with their guarantee.
func TestNothingIsMuchSlower(t *testing.T) {
	for recipe := range rounds {
		t.Run(recipe, func(t *testing.T) { nothingHangs(t, stub(t, "GS_STUB_GPUS=2"), recipe) })
	}
}
