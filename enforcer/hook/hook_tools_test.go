//go:build tools

package hook

import (
	"os"
	"path/filepath"
	"testing"

	"gpusteward/internal/fixture"
)

// TestAArch64 runs the tests for aarch64, under qemu.
func TestAArch64(t *testing.T) {
	t.Parallel()
	arm := newBuild("arm-", "build/arm", "tested")
	arm.runner = []string{"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"}
	for name, test := range ofEachBuild {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, arm)
		})
	}
}

// TestHeader reads the header of a CUDA toolkit if there is one.
func TestHeader(t *testing.T) {
	var headers []string
	for _, dir := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda*", "/usr/lib/cuda",
		"/usr"} {
		found, _ := filepath.Glob(filepath.Join(dir, "include", "cuda.h"))
		headers = append(headers, found...)
	}
	if len(headers) == 0 {
		t.Skip("no cuda.h in CUDA_HOME, CUDA_PATH or /usr/local/cuda: nothing holds entries.h against a toolkit's " +
			"header")
	}
	classes, wrapped := entries(t), wrappers(t)
	for _, path := range headers {
		text := fixture.Value(os.ReadFile(path))(t)
		fixture.AtLeast(t, len(declared.FindAllString(string(text), -1)), 200,
			"%s: … functions are found in it: is it the driver's?", path)
		fixture.EqualSlices(t, gaps(string(text), classes, wrapped), nil,
			"%s: give these a line in entries.h, or a wrapper in calls.h", path)
	}
}
