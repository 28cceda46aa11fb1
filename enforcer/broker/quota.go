package broker

import (
	"math"
	"time"

	"gpusteward/enforcer/schedule"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// A Quota is what a tenant's processes may use of one GPU together, as it holds
// now: the terms, and what follows from them beside other tenants. The zero
// value limits nothing.
type Quota struct {
	quota.Quota
	Weight  float64        // its part of the GPU's time, in proportion to the other tenants' that want it; 0 is 1
	Class   schedule.Class // higher classes go first
	Link    uint64         // bytes a second that it may copy over the link; 0 is no limit
	Copy    uint64         // bytes a second that it may copy within the GPU; 0 is no limit
	Held    bool           // it gets no turns
	Differs bool           // the tenant has other terms on some GPUs
}

func (q Quota) weight() float64 {
	if q.Weight > 0 {
		return q.Weight
	}
	return 1
}

// tell writes the quota into the answer to a process, for people.
func (q Quota) tell(w *wire.Welcome) {
	w.Guarantee, w.Limit = thousandths(q.Guarantee), max(thousandths(q.Limit), 1)
	w.Memory, w.MemoryPart = q.Memory, thousandths(q.MemoryPart)
	if q.Differs {
		w.Elsewhere = 1
	}
}

// thousandths returns a part in 1/1000.
func thousandths(part float64) uint32 { return uint32(math.Round(1000 * part)) }

func (q Quota) share() schedule.Share {
	wait := time.Duration(q.LaunchWait)
	return schedule.Share{Weight: q.Weight, Limit: q.Limit, Class: q.Class, Wait: wait, Held: q.Held}
}
