package schedule

import "time"

// Stats are the sums of one tenant since it first came.
type Stats struct {
	Charged   time.Duration // GPU time
	Waited    time.Duration // from wanting the GPU to having it
	Throttled time.Duration // it wanted the GPU and its limit stood against it
	Overrun   time.Duration // it had the GPU after the end of a turn, draining or past the deadline
	Turns     uint64
	Overruns  uint64 // turns that ended by the drain's deadline
}

// Stats returns the sums of a tenant; zero for one that is unknown.
func (g *GPU) Stats(name string) Stats {
	if t := g.find(name); t != nil {
		return t.stats
	}
	return Stats{}
}

// A System is the account of what no tenant is charged for.
type System struct {
	Handover  time.Duration // between turns: granted and not used
	Together  time.Duration // several tenants ran at once
	Preempted uint64        // turns that were cut short for one that began to want
	Trials    uint64        // of running together
	Failed    uint64        // of them: somebody would have lost by it
}

// System returns the account of what no tenant is charged for.
func (g *GPU) System() System { return g.system }

const (
	slotTime = 100 * time.Millisecond
	slots    = 101 // 10 s, and the one that is being filled
)

// A history is a ring of what was charged, and what would have been due by
// weight.
type history [slots]struct{ charged, due time.Duration }

// slot returns the slot that the time up to at is in.
func (h *history) slot(at time.Duration) *struct{ charged, due time.Duration } {
	return &h[index(at)%slots]
}

func index(at time.Duration) int { return int(max(at-1, 0) / slotTime) }

// remember books what is due for the time from g.now to now, and clears the
// slots that begin in it.
func (g *GPU) remember(now time.Duration) {
	weights := 0.0
	for _, t := range g.tenants {
		if t.wants {
			weights += t.share.Weight
		}
	}
	fresh := min(index(now)-index(g.now), slots)
	for _, t := range g.tenants {
		for i := range fresh {
			*t.past.slot(now - time.Duration(i)*slotTime) = history{}[0]
		}
		if t.wants {
			part := min(t.share.Weight/weights, t.share.Limit)
			t.past.slot(now).due += time.Duration(part * float64(now-g.now))
		}
	}
}

// Shares returns a tenant's part of the GPU's time, 0 to 1, over the last
// whole tenths of a second in window (at most 10 s): what it was charged, and
// what was due to it by weight and limit while it wanted.
func (g *GPU) Shares(name string, window time.Duration) (actual, target float64) {
	t := g.find(name)
	n := min(int(window/slotTime), slots-1, int(g.now/slotTime))
	if t == nil || n < 1 {
		return 0, 0
	}
	var charged, due time.Duration
	for i := range n {
		s := t.past.slot((g.now/slotTime - time.Duration(i)) * slotTime)
		charged += s.charged
		due += s.due
	}
	all := float64(time.Duration(n) * slotTime)
	return float64(charged) / all, float64(due) / all
}
