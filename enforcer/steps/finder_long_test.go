//go:build long

package steps

import "testing"

// TestLaterPrograms: as TestKeptPrograms, with what is known to fall short. Two kinds
// of steps in turn are taken for one. No step ends while something is compiled.
func TestLaterPrograms(t *testing.T) {
	checkAll(t, later, result{found: 20, median: 0.007, p99: 0.07, counted: 0.04, stepping: 0.07}, map[string]result{
		"actor each second step":                 {found: 30, median: 0.8, p99: 0.5, counted: 0.51},
		"compiled, graphs, compiled again twice": {found: 20, median: 0.007, p99: 0.02, counted: 0.05},
	})
}

// TestFreshPrograms: as TestLaterPrograms. The first of very long evaluations is taken
// for steps. Steps of random lengths that begin elsewhere have other medians. What ranks
// do between steps belongs to the next one.
func TestFreshPrograms(t *testing.T) {
	checkAll(t, fresh, result{found: 20, median: 0.003, p99: 0.02, counted: 0.04, stepping: 0.03}, map[string]result{
		"evaluation of 1500 batches after each 120 steps":       {found: 20, median: 0.4, p99: 0.11, counted: 2},
		"trees of any size, loader":                             {found: 20, median: 0.02, p99: 0.05, counted: 0.01},
		"ranks that agree each 20th step, buckets in any order": {found: 20, median: 0.003, p99: 0.1, counted: 0.01},
	})
}

// TestAsidePrograms: as TestFreshPrograms. Steps of one thread that launches more or
// less are none.
func TestAsidePrograms(t *testing.T) {
	checkAll(t, aside, result{found: 20, median: 0.003, p99: 0.02, counted: 0.04, stepping: 0.05}, map[string]result{
		"speech of 1 to 4 s": {found: 20, median: 0.006, p99: 0.02, counted: 0.01},
		"molecules, kernels by number of atoms, one thread": {found: 400, counted: 1},
	})
}

// TestNovelPrograms: as TestAsidePrograms. A loop of which nothing is read looks like
// steps until it runs again, for longer or shorter.
func TestNovelPrograms(t *testing.T) {
	checkAll(t, novel, result{found: 20, median: 0.003, p99: 0.02, counted: 0.04, stepping: 0.02}, map[string]result{
		"pictures in 18 to 60 steps, guidance":       {stepping: 0.12},
		"a notebook whose cells run again and again": {stepping: 0.25},
	})
}

// TestWithheldPrograms: as TestNovelPrograms. What is done each 16th step looks like the
// update of 16 batches.
func TestWithheldPrograms(t *testing.T) {
	checkAll(t, withheld, result{found: 20, median: 0.003, p99: 0.02, counted: 0.04, stepping: 0.04}, map[string]result{
		"radiance field, grid each 16th step": {found: 1000, median: 110, p99: 2, counted: 1},
	})
}
