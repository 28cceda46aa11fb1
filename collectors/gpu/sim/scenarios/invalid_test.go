package scenarios

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/internal/fixture"
)

// TestInvalid decodes and expands testdata/invalid: the first line of each file is part of the expected error.
func TestInvalid(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid/*.yml")
	fixture.Need(t, err != nil || len(files) < 30, false, "%d files, %v", len(files), err)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text := fixture.Value(os.ReadFile(file))(t)
			line, _, _ := strings.Cut(string(text), "\n")
			wanted := strings.TrimPrefix(line, "# ")
			var s Scenario
			d := yaml.NewDecoder(bytes.NewReader(text))
			d.KnownFields(true)
			if err = d.Decode(&s); err == nil {
				_, err = s.Expand()
			}
			fixture.Fails(t, err, wanted, "error is")
		})
	}
}

// TestUnknownScenario checks that the error lists the known scenarios.
func TestUnknownScenario(t *testing.T) {
	_, err := Source("nope")
	fixture.Fails(t, err, "mixed, models", "error is")
}
