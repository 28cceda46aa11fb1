package alerts

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gpusteward/internal/fixture"
)

// TestGolden compares the generated files with the checks, or writes them with -update.
func TestGolden(t *testing.T) {
	files := Files()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if *fixture.Update {
			fixture.Must(t, os.WriteFile(name, []byte(files[name]), 0o644))
			continue
		}
		stands, err := os.ReadFile(name)
		fixture.Must(t, err)
		fixture.Equal(t, string(stands), files[name], "%s differs from the checks; run make generate", name)
	}
	stands, err := filepath.Glob("*.yml")
	fixture.Must(t, err)
	for _, name := range stands {
		if files[name] == "" {
			t.Errorf("%s is no longer generated; remove it", name)
		}
	}
}
