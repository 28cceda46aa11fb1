//go:build long

package audit

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// In an obedient world, processes come and go, run and sleep, take turns within
// their limits or run together. The driver samples a sixth of a second, rounds
// to whole percents, and answers late. The audit never accuses anybody.
func TestAnObedientWorldIsNotAccused(t *testing.T) {
	t.Parallel()
	const worlds, steps = 4, 25_000
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			o, known := newObedient(rand.New(rand.NewPCG(6, uint64(seed)))), 0
			for i := range steps {
				got := o.step()
				if len(got.Violations) > 0 {
					t.Fatalf("step %d: %s: %s", i, got.found(), got.Violations[0].Text)
				}
				for _, k := range got.Known {
					if k {
						known++
					}
				}
			}
			if known < steps {
				t.Errorf("subjects were known %d times only in %d steps", known, steps)
			}
		})
	}
}
