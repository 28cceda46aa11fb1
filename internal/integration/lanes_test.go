package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// TestLanes: a file is in the lane of its name. make finds the tests of a lane
// by the name, and Go builds them by the tag.
func TestLanes(t *testing.T) {
	t.Parallel()
	name, tag := regexp.MustCompile(`_(long|nightly|timed|tools)_test\.go$`),
		regexp.MustCompile(`(?m)^//go:build (long|nightly|timed|tools)$`)
	lanes := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		named, tagged := "", ""
		if m := name.FindStringSubmatch(path); m != nil {
			named = m[1]
		}
		if m := tag.FindStringSubmatch(string(text)); m != nil {
			tagged = m[1]
		}
		fixture.Equal(t, named != tagged, false, "%s: the name says lane %q, the build tag %q", path, named, tagged)
		lanes[named]++
		return nil
	})
	fixture.Must(t, err)
	for _, lane := range []string{"long", "nightly", "timed", "tools"} {
		fixture.Equal(t, lanes[lane] == 0, false, "lane %s has no file", lane)
	}
}
