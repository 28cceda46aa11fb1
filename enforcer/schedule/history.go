package schedule

import "time"

// Stats are the sums of one tenant since it first came.
type Stats struct {
	Charged   time.Duration // GPU time
	Waited    time.Duration // from wanting the GPU to having it, the wait under way included
	Throttled time.Duration // it wanted the GPU and its limit stood against it
	Overrun   time.Duration // it had the GPU after the end of a turn, draining or past the deadline
	Turns     uint64
	Overruns  uint64 // turns that ended by the drain's deadline
	Waits     uint64 // times that it waited for a turn, for no time at all too, and got it or gave up
	Late      uint64 // of them, those that were longer than its Share's Wait, beside what its limit made it wait
}

// Stats returns the sums of a tenant as of the last input; zero for one that
// is unknown.
func (g *GPU) Stats(name string) Stats {
	t := g.find(name)
	if t == nil {
		return Stats{}
	}
	s := t.stats
	s.Waited += max(g.waiting(t), 0)
	return s
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
// slots that begin in it. To who is held nothing is, and to who is idle what
// the others leave.
func (g *GPU) remember(now time.Duration) {
	weights, least := 0.0, Idle
	for _, t := range g.tenants {
		if !t.wants || t.share.Held || t.share.Class < least {
			continue
		}
		if least == Idle && t.share.Class > Idle {
			weights, least = 0, Normal
		}
		weights += t.share.Weight
	}
	fresh := min(index(now)-index(g.now), slots)
	at, passed := index(now)%slots, float64(now-g.now)
	for _, t := range g.tenants {
		for i := range fresh {
			*t.past.slot(now - time.Duration(i)*slotTime) = history{}[0]
		}
		if t.wants && !t.share.Held && t.share.Class >= least {
			part := t.share.Weight / weights
			if part > t.share.Limit {
				part = t.share.Limit
			}
			t.past[at].due += time.Duration(part * passed)
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
