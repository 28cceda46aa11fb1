//go:build timed

package workloads

import (
	"testing"
	"time"
)

func TestAttributionIsCheap(t *testing.T) {
	pass := aCrowd(t)
	pass()
	before := spentCPU(t)
	const turns, most = 200, 5 * time.Millisecond
	for range turns {
		pass()
	}
	if each := (spentCPU(t) - before) / turns; each > most {
		t.Errorf("a turn with 512 processes takes %v of CPU, at most %v", each, most)
	} else {
		t.Logf("a turn with 512 processes takes %v of CPU", each)
	}
}
