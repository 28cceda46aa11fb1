package broker

import (
	"time"

	"gpusteward/enforcer/schedule"
	"gpusteward/internal/quota"
)

// A Quota is what a tenant's processes may use of one GPU together, as it holds
// now: the terms, and what follows from them beside other tenants. The zero
// value limits nothing.
type Quota struct {
	quota.Quota
	Weight float64        // its part of the GPU's time, in proportion to the other tenants' that want it; 0 is 1
	Class  schedule.Class // who goes first
	Link   uint64         // bytes a second that it may copy over the link; 0 is no limit
	Copy   uint64         // bytes a second that it may copy within the GPU; 0 is no limit
	Held   bool           // it gets no turns
}

func (q Quota) weight() float64 {
	if q.Weight > 0 {
		return q.Weight
	}
	return 1
}

func (q Quota) share() schedule.Share {
	wait := time.Duration(q.LaunchWait)
	return schedule.Share{Weight: q.Weight, Limit: q.Limit, Class: q.Class, Wait: wait, Held: q.Held}
}
