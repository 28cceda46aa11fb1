//go:build long

package health

import (
	"strings"
	"testing"
)

// TestSlowFaults holds that each fault is found in time by its check, and by no
// other, and that a healthy cause has no finding.
func TestSlowFaults(t *testing.T) {
	t.Parallel()
	for _, f := range slowFaults {
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			f.test(t)
		})
	}
}
