//go:build long

package gpu

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gpusteward/internal/fixture"
)

// TestEveryWrapperHasACaller generates the wrappers again. A wrapper without a
// caller would be left out, and the result would differ.
func TestEveryWrapperHasACaller(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fixture.Must(t, os.MkdirAll(filepath.Join(dir, "sim", "stub"), 0o700))
	out, err := exec.CommandContext(t.Context(), "go", "run", "generate.go", dir).CombinedOutput()
	fixture.Stop(t, err != nil, "generate: %v\n%s", err, out)
	for _, name := range []string{"calls_gen.go", "entries_gen.h", "sim/stub/device_gen.go"} {
		want, err1 := os.ReadFile(filepath.Join(dir, name))
		got, err2 := os.ReadFile(name)
		fixture.If(t, err1 != nil || err2 != nil || !bytes.Equal(got, want),
			"%s differs from the output of go generate: a call was added or removed (%v, %v)", name, err1, err2)
	}
}
