package gpu

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestEveryWrapperHasACaller has the calls that the program makes generated
// anew: a wrapper that nothing calls would be left out, and so differ.
func TestEveryWrapperHasACaller(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sim"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "run", "generate.go", dir).CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, out)
	}
	for _, name := range []string{"calls_gen.go", "sim/unsupported_gen.go"} {
		want, err1 := os.ReadFile(filepath.Join(dir, name))
		got, err2 := os.ReadFile(name)
		if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what go generate writes: some call is new, or no longer made (%v, %v)", name, err1, err2)
		}
	}
}
