package schedule

import "time"

// Stats are the sums of one tenant since it first came.
type Stats struct {
	Charged   time.Duration // GPU time; tenants that ran at once share it
	Served    time.Duration // time that its work would have needed alone
	Wanted    time.Duration // it had work, or launches that waited
	Waited    time.Duration // part of Wanted in which it was held back, including the present wait
	Throttled time.Duration // it wanted the GPU and its limit held it back
	Overrun   time.Duration // it had not drained by the deadline after its pause
	Convoy    time.Duration // it did not drain while its other GPU was held back: it waited for itself
	Turns     uint64        // times that it was allowed to run
	Overruns  uint64        // times that it did not drain by the deadline
	Waits     uint64        // waits, including those of no length, that ended with a turn or were given up
	Late      uint64        // waits longer than its Share's Wait, without what its limit made it wait
}

// Stats returns the sums of a tenant as of the last input; zero for an unknown
// one.
func (g *GPU) Stats(name string) Stats {
	t := g.find(name)
	if t == nil {
		return Stats{}
	}
	s := t.stats
	s.Waited += max(g.waiting(t), 0)
	return s
}

// Lag returns how much GPU time the tenant is owed; below 0 it is ahead.
func (g *GPU) Lag(name string) time.Duration {
	if t := g.find(name); t != nil {
		return t.lag
	}
	return 0
}

// A System is the account of time that no tenant is charged for.
type System struct {
	Handover  time.Duration // a tenant was allowed to run and waited for others to drain
	Together  time.Duration // several tenants ran at once
	Preempted uint64        // tenants that were paused for one that goes first
	Gangs     uint64        // tenants that waited for themselves across GPUs
}

// System returns the account of time that no tenant is charged for.
func (g *GPU) System() System { return g.system }

const (
	slotTime = 100 * time.Millisecond
	slots    = 101 // 10 s, and the one that is being filled
)

// A history is a ring of the service received, and the service due by weight.
type history [slots]struct{ served, due time.Duration }

// slot returns the slot of the time up to at.
func (h *history) slot(at time.Duration) *struct{ served, due time.Duration } {
	return &h[index(at)%slots]
}

func index(at time.Duration) int { return int(max(at-1, 0) / slotTime) }

// remember clears the slots that begin between two times.
func (t *tenant) remember(from, to time.Duration) {
	fresh := min(index(to)-index(from), slots)
	for i := range fresh {
		*t.past.slot(to - time.Duration(i)*slotTime) = history{}[0]
	}
}

// spread books what was received and due in a past time, evenly.
func (t *tenant) spread(from, to, served, due time.Duration) {
	for at := max(from, t.gpu.now-(slots-1)*slotTime); at < to; {
		end := min((at/slotTime+1)*slotTime, to)
		part := float64(end-at) / float64(to-from)
		s := t.past.slot(end)
		s.served += time.Duration(part * float64(served))
		s.due += time.Duration(part * float64(due))
		at = end
	}
}

// Shares returns a tenant's part of the GPU's time, 0 to 1, over the last whole
// tenths of a second in window (at most 10 s): the service received, and the
// service due by weight and limit while it wanted the GPU. Tenants that run
// together can have more than a whole GPU.
func (g *GPU) Shares(name string, window time.Duration) (actual, target float64) {
	t := g.find(name)
	n := min(int(window/slotTime), slots-1, int(g.now/slotTime))
	if t == nil || n < 1 {
		return 0, 0
	}
	var served, due time.Duration
	for i := range n {
		s := t.past.slot((g.now/slotTime - time.Duration(i)) * slotTime)
		served += s.served
		due += s.due
	}
	all := float64(time.Duration(n) * slotTime)
	return float64(served) / all, float64(due) / all
}
