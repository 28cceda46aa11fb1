package jobs

import (
	"slices"
	"time"
)

// A pauseMeter knows the longest pause between two calls that is usual in a step.
// A checkpoint now and then does not change that.
type pauseMeter struct {
	longest time.Duration // since the last step
	last    [16]time.Duration
	steps   int
	usual   time.Duration // exceeded in fewer than a quarter of steps, of which a program may have several kinds
}

// note notes a pause.
func (m *pauseMeter) note(pause time.Duration) { m.longest = max(m.longest, pause) }

// ended notes that so many steps have ended.
func (m *pauseMeter) ended(steps int) {
	if steps == 0 {
		return
	}
	for range min(steps, len(m.last)) {
		m.last[m.steps%len(m.last)] = m.longest
		m.steps++
	}
	m.longest = 0
	sorted := slices.Sorted(slices.Values(m.last[:]))
	m.usual = max(m.usual, sorted[len(sorted)*3/4])
}

// known reports whether there were enough steps. Until then the whole step is the
// limit.
func (m *pauseMeter) known() bool { return m.steps >= 2*len(m.last) }
