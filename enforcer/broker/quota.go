package broker

import (
	"time"

	"gpusteward/enforcer/schedule"
)

// A Quota is what a tenant's processes may use of one GPU together, as it
// holds now.
type Quota struct {
	Weight   float64        // its part of the GPU's time beside the others who want it, in proportion to theirs; 0 is 1
	Limit    float64        // most of the GPU's time, 0 to 1; 0 and 1 none
	Class    schedule.Class // who goes first
	Wait     time.Duration  // a wait for a turn that is longer counts as late; 0 none does
	Memory   uint64         // most of the GPU's memory, bytes; 0 no cap
	Reserved uint64         // memory that is kept for it, bytes
	Link     uint64         // bytes a second that it may copy over the link; 0 at will
	Copy     uint64         // bytes a second that it may copy within the GPU; 0 at will
	Held     bool           // it gets no turns
}

func (q Quota) weight() float64 {
	if q.Weight > 0 {
		return q.Weight
	}
	return 1
}

func (q Quota) share() schedule.Share {
	return schedule.Share{Weight: q.Weight, Limit: q.Limit, Class: q.Class, Wait: q.Wait, Held: q.Held}
}
