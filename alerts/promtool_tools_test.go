//go:build tools

package alerts

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPromtool checks the rules and runs their tests with promtool.
func TestPromtool(t *testing.T) {
	t.Parallel()
	for pattern, command := range map[string]string{"*.rules.yml": "check", "*.rules.test.yml": "test"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 3 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, name := range files {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out, err := exec.Command("promtool", command, "rules", name).CombinedOutput()
				if err != nil {
					t.Errorf("promtool (make tools installs it): %v\n%s", err, out)
				}
			})
		}
	}
}
