package incident

import (
	"fmt"
	"testing"

	"gpusteward/internal/fixture"
)

// TestMalformedTableIsRefused holds that the reader of a table of facts
// reports a mistake with its line.
func TestMalformedTableIsRefused(t *testing.T) {
	t.Parallel()
	defer func() {
		fixture.Equal(t, fmt.Sprint(recover()), "data/actions.tsv:2: no", "it is")
	}()
	readFacts("actions", func(map[string]string) error { return fmt.Errorf("no") })
}
