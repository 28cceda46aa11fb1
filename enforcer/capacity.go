package enforcer

import (
	"maps"
	"sync/atomic"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
)

// capacity owns how many bytes of each GPU's memory tenants can have, by UUID. Run's goroutine
// measures it; anybody may ask.
type capacity struct {
	atomic.Pointer[map[string]uint64]
	memory func(uuid string) (total, free, reserved uint64, ok bool) // of a GPU
	given  given
}

// measure finds how much of each GPU's memory tenants can have: what
// they have, as far as the driver lists it, plus what is free, at most all of it; of an overcommitted GPU, also
// what is on the host.
func (c *capacity) measure(b audit.Books, p *policy.Policy, away map[string]uint64) {
	capacity := map[string]uint64{}
	for _, t := range b.Tenants {
		capacity[t.GPU] += t.MemoryUsed + t.MemoryReserved - t.MemoryUnlisted
	}
	for uuid, used := range capacity {
		if total, free, kept, ok := c.memory(uuid); ok {
			capacity[uuid] = min(used+free, total-min(kept, total)+away[uuid])
		} else {
			delete(capacity, uuid)
			continue
		}
		if _, is := p.Overcommitted(uuid); !is {
			capacity[uuid] = c.given.settle(b.Now, uuid, used, capacity[uuid])
		}
	}
	maps.DeleteFunc(c.given, func(uuid string, _ gave) bool { _, there := capacity[uuid]; return !there })
	c.Store(&capacity)
}

// of returns how much of a GPU's memory tenants can have; before the
// first look at its books, all except the driver's own.
func (c *capacity) of(uuid string) uint64 {
	if capacity, known := (*c.Load())[uuid]; known {
		return capacity
	}
	total, _, kept, _ := c.memory(uuid)
	return total - min(kept, total)
}

// settling is for how long the driver's reading of a GPU's memory may be older than
// its last listing of processes, and the broker's books.
const settling = 2 * time.Second

// given is what tenants had before they gave some of it back, by the UUID of a GPU.
type given map[string]gave

type gave struct {
	used, capacity uint64    // before they gave any back
	last           uint64    // what they had at the last look
	at             time.Time // of the first look at what they have now: a reading from before it may be too old
}

// settle returns a GPU's capacity. What tenants gave back a moment ago may not be
// free in the reading, and is not lost.
func (all given) settle(now time.Time, uuid string, used, measured uint64) uint64 {
	was := all[uuid]
	if used < was.last {
		was.at = now
	}
	if used >= was.used || now.Sub(was.at) >= settling {
		all[uuid] = gave{used, measured, used, time.Time{}}
		return measured
	}
	was.last = used
	all[uuid] = was
	return min(max(measured, was.capacity), measured+was.used-used)
}
