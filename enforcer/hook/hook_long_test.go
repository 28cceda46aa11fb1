//go:build long

package hook

import (
	"context"
	"os/exec"
	"testing"
	"time"
)

// TestPrograms runs every test/test_*.c: plain, for aarch64, under AddressSanitizer
// and UndefinedBehaviorSanitizer, and under ThreadSanitizer, side by side: most of the time
// they wait.
func TestPrograms(t *testing.T) {
	programs := func(t *testing.T, target string) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, "make", "-ks", target).CombinedOutput()
		if err != nil {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
		t.Logf("%s", out)
	}
	onEach(t, func(t *testing.T, m *machine) {
		t.Parallel()
		m.library(t)
		programs(t, m.prefix+"test")
	})
	for _, target := range []string{"asan", "tsan"} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			machines[0].library(t)
			programs(t, target)
		})
	}
}
