//go:build long

package health

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

// TestDetection holds that each fault is found in time by its check, and by no
// other.
func TestDetection(t *testing.T) {
	t.Parallel()
	for _, d := range detections(t) {
		t.Run(strings.ReplaceAll(d.Row, " / ", "+")+"/"+d.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, d.test)
		})
	}
}

// TestEveryRowIsDetected holds that every row of the table of checks has a
// scenario, and logs which are tested through the whole chain.
func TestEveryRowIsDetected(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/health-checks.tsv")
	if err != nil {
		t.Fatal(err)
	}
	whole, finds, tested := map[string]bool{}, map[string]bool{}, 0
	for _, d := range detections(t) {
		whole[d.Row], finds[d.Find.Check] = true, true
	}
	rows := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")[1:]
	for _, row := range rows {
		id, _, _ := strings.Cut(row, "\t")
		if whole[id] {
			tested++
		} else if byHand[id] == "" {
			t.Errorf("%s has no scenario", id)
		}
	}
	for _, c := range Checks() {
		if !finds[c.ID] && byHand[c.ID] == "" {
			t.Errorf("no scenario is found by %s", c.ID)
		}
	}
	if t.Logf("%d of %d rows are tested through the whole chain", tested, len(rows)); tested < 40 {
		t.Error("which is too few")
	}
}
