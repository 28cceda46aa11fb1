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
			if !quantities.MatchString(d) && !strings.Contains(d, "{labels}") && !strings.Contains(d, "{xids}") {
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

// TestAlertDoesNotRepeatItsSummary holds that the description of an alert
// without a detail tells the cause, while its finding stands alone.
func TestAlertDoesNotRepeatItsSummary(t *testing.T) {
	t.Parallel()
	c := *hotCheck
	c.Detail, c.Cause = "", "The fan stands still."
	w := newWorld(t, &c)
	w.steps(4, hotAt(-1))
	f, a := w.engine.Findings()[0], w.engine.Alerts(nil)[0].Annotations
	if a["summary"] != "GPU 0: It is hot." || a["description"] != "The fan stands still." || f.Message != "It is hot." {
		t.Errorf("%q, %q; the finding says %q", a["summary"], a["description"], f.Message)
	}
}
