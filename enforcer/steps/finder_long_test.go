//go:build long

package steps

import "testing"

// TestOtherPrograms: as TestPrograms, with what is known to fall short. Two kinds of steps in turn are taken for one.
// No step ends while something is compiled. What ranks do between steps belongs to the next one. A loop of which
// nothing is read looks like steps until it runs again, for longer or shorter.
func TestOtherPrograms(t *testing.T) {
	t.Parallel()
	checkAll(t, others, result{found: 20, median: 0.003, p99: 0.02, counted: 0.04, stepping: 0.05}, map[string]result{
		"actor each second step":                                {found: 30, median: 0.8, p99: 0.5, counted: 0.51},
		"compiled, graphs, compiled again twice":                {found: 20, median: 0.007, p99: 0.02, counted: 0.05},
		"ranks that agree each 20th step, buckets in any order": {found: 20, median: 0.003, p99: 0.1, counted: 0.01},
		"answers by an engine whose threads take turns":         {stepping: 0.1},
		"pictures in 18 to 60 steps, guidance":                  {stepping: 0.12},
	})
}
