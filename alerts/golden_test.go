package alerts

import (
	"testing"

	"gpusteward/internal/fixture"
)

// TestGolden compares the generated files with the checks, or writes them with -update. make
// generate does that.
func TestGolden(t *testing.T) { fixture.GoldenFiles(t, "*.yml", Files()) }
