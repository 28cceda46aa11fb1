//go:build long

package hook

import "testing"

// TestSanitized runs every test/test_*.c under AddressSanitizer with UndefinedBehaviorSanitizer, and
// under ThreadSanitizer.
func TestSanitized(t *testing.T) {
	t.Parallel()
	for name, sanitized := range map[string]*build{
		"address": newBuild("asan-", "build/asan", "programs"),
		"threads": newBuild("tsan-", "build/tsan", "programs"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			programs(t, sanitized)
		})
	}
}
