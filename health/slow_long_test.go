//go:build long

package health

import (
	"strings"
	"testing"
)

// TestSlowFaults has each found in time, by the check that is for it and by no
// other, and nothing found where nothing is wrong.
func TestSlowFaults(t *testing.T) {
	t.Parallel()
	for _, f := range slowFaults {
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			f.test(t)
		})
	}
}
