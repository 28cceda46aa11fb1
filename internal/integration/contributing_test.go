package integration

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// excerpt is a block of CONTRIBUTING.md and its file.
var excerpt = regexp.MustCompile("(?ms)^From `([^`\n]+)`:\n\n```[a-z]*\n(.*?)^```$")

// undented returns the lines of a text without their indentation.
func undented(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

// TestContributingExamples compares each excerpt of CONTRIBUTING.md with its
// file, and requires one for each kind of addition.
func TestContributingExamples(t *testing.T) {
	t.Parallel()
	page := documents(t)["CONTRIBUTING.md"]
	var with []string // headings of sections that have excerpts
	for _, section := range strings.Split(page, "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		found := excerpt.FindAllStringSubmatch(section, -1)
		if blocks := len(fence.FindAllString(section, -1)); blocks != len(found) {
			t.Errorf("CONTRIBUTING.md, %s: %d blocks, and %d that say which file they are from", title, blocks,
				len(found))
		}
		for _, e := range found {
			source, err := os.ReadFile(e[1])
			if err != nil {
				t.Errorf("CONTRIBUTING.md, %s: %v", title, err)
			} else if !strings.Contains("\n"+undented(string(source))+"\n", "\n"+undented(e[2])+"\n") {
				t.Errorf("CONTRIBUTING.md, %s: %s does not have\n%s", title, e[1], e[2])
			}
			with = append(with, title)
		}
	}
	for _, title := range []string{"Add a collector", "Add a check", "Add a panel", "Add a quota term", "Add a command",
		"Add an endpoint", "Wrap a driver call"} {
		if !slices.Contains(with, title) {
			t.Errorf("CONTRIBUTING.md has no example in a section %q", title)
		}
	}
}
