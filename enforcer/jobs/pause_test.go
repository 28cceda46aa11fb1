package jobs

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestUsualPauses(t *testing.T) {
	t.Parallel()
	var m pauseMeter
	steps := func(n int, pause time.Duration) {
		for range n {
			m.longest = pause
			m.ended(1)
		}
	}
	steps(20, time.Second)
	if m.known() || m.usual != time.Second {
		t.Errorf("after 20 steps: usual %v, known %v", m.usual, m.known())
	}
	steps(1, 10*time.Minute) // a checkpoint
	steps(10, time.Second)
	steps(1, 10*time.Minute)
	if !m.known() || m.usual != time.Second {
		t.Errorf("after two checkpoints: usual %v, known %v; want a second", m.usual, m.known())
	}
	steps(1000, 100*time.Millisecond) // a validation
	fixture.Equal(t, m.usual, time.Second, "after a validation: usual")
	steps(16, 3*time.Second)
	fixture.Equal(t, m.usual, 3*time.Second, "of longer steps: usual")
}
