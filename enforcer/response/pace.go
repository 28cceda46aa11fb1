package response

import (
	"maps"

	"gpusteward/enforcer/policy"
)

// A place is a tenant on a GPU.
type place struct{ tenant, gpu string }

// A pacer keeps tenants to their part of the memory's bandwidth where the hook
// cannot: the hook sees copies, but not the memory accesses of kernels. For
// those there are only the driver's samples of how long a process kept the
// memory busy. A tenant that keeps it busy for too long gets less of the GPU's
// time until it does not. It is pure, and belongs to one goroutine.
type pacer map[place]float64 // the limits that it sets

// Parameters of a pacer.
const (
	paceLeast = .02 // of the GPU's time, the lowest limit
	paceFast  = 1.1 // factor by which a limit rises after each sample well within the part
	paceWell  = .9  // of the allowed part: samples below it are well within
)

// look takes a new sample: used is the part of the time in which the tenant
// kept the GPU's memory busy, share the part of the GPU's time that it had.
func (p pacer) look(at place, q policy.Quota, used, share float64) {
	limit, paced := p[at]
	switch {
	case q.Bandwidth >= 1:
		delete(p, at)
	case used > q.Bandwidth && share > 0:
		if paced {
			share = min(share, limit)
		}
		p[at] = max(share*q.Bandwidth/used, paceLeast)
	case paced && used < paceWell*q.Bandwidth:
		if p[at] = limit * paceFast; p[at] >= q.Limit {
			delete(p, at)
		}
	}
}

// clone returns a copy.
func (p pacer) clone() pacer { return maps.Clone(p) }

// limit returns the tenant's present limit of the GPU's time.
func (p pacer) limit(at place, q policy.Quota) float64 {
	if limit, paced := p[at]; paced {
		return min(limit, q.Limit)
	}
	return q.Limit
}
