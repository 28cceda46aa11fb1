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
			if err := os.WriteFile(name, []byte(files[name]), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		stands, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(stands) != files[name] {
			t.Errorf("%s differs from the checks; run make generate", name)
		}
	}
	stands, err := filepath.Glob("*.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stands {
		if files[name] == "" {
			t.Errorf("%s is no longer generated; remove it", name)
		}
	}
}
