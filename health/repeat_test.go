package health

import (
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// TestTextsDoNotRepeat holds that each sentence about a check says something
// new. A detail says the summary again with a value in it.
func TestTextsDoNotRepeat(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		details := map[string]bool{c.Detail: true}
		for _, l := range c.Levels {
			details[l.Detail] = true
		}
		delete(details, "")
		texts := [][]string{{c.Summary, c.Action, c.Cause}}
		for d := range details {
			texts = append(texts, []string{d, c.Action, c.Cause})
			if !quantities.MatchString(d) && !strings.Contains(d, "{labels}") && !strings.Contains(d, "{xids}") &&
				!strings.Contains(d, "{event}") {
				texts = append(texts, []string{c.Summary, d})
			}
		}
		for _, together := range texts {
			for _, pair := range fixture.Repeats(together...) {
				t.Errorf("%s says twice: %q", c.ID, pair)
			}
		}
	}
}
