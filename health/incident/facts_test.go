package incident

import (
	"fmt"
	"testing"
)

// TestMalformedTableIsRefused holds that the reader of a table of facts
// reports a mistake with its line.
func TestMalformedTableIsRefused(t *testing.T) {
	t.Parallel()
	defer func() {
		if got, want := fmt.Sprint(recover()), "data/actions.tsv:2: no"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}()
	readFacts("actions", func(map[string]string) error { return fmt.Errorf("no") })
}
