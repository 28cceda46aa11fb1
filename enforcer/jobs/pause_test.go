package jobs

import (
	"testing"
	"time"
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
	if m.usual != time.Second {
		t.Errorf("after a validation: usual %v, want a second", m.usual)
	}
	steps(16, 3*time.Second)
	if m.usual != 3*time.Second {
		t.Errorf("of longer steps: usual %v, want 3 s", m.usual)
	}
}
