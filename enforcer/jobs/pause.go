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
}

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
}

// usual is exceeded in fewer than a quarter of the last steps.
func (m *pauseMeter) usual() time.Duration {
	known := slices.Clone(m.last[:min(m.steps, len(m.last))])
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[len(known)-1-len(known)/4]
}
