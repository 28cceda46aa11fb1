package broker

import (
	"maps"
	"slices"
	"sync"
)

// gpus are the GPUs that sessions have asked for and that are governed. The mutex guards them;
// Options.Known and the times are asked with it.
type gpus struct {
	*common
	times *timetable
	met   seldom // an ungoverned one

	mu sync.Mutex
	by map[[16]byte]*gpu
}

// of returns the GPU of that UUID, and begins to share it if necessary; nil:
// it is not governed.
func (all *gpus) of(uuid [16]byte) *gpu {
	all.mu.Lock()
	defer all.mu.Unlock()
	g := all.by[uuid]
	if g != nil || uuid == [16]byte{} || all.over() || len(all.by) >= all.timing.maxGPUs {
		return g
	}
	name, known := all.name(uuid)
	if !known {
		return nil
	}
	g = all.times.add(name, uuid)
	all.by[uuid] = g
	return g
}

// name returns a UUID as NVML writes it, and whether the host has such a GPU or
// MIG device: the UUID alone does not tell which it is.
func (all *gpus) name(uuid [16]byte) (name string, known bool) {
	is := all.options.Known
	if mig := written("MIG", uuid); is != nil && is(mig) {
		return mig, true
	}
	name = written("GPU", uuid)
	return name, is == nil || is(name)
}

// giveUp drops MIG devices that counted as GPUs because no driver could
// identify them yet, and what counted as a GPU until the host's were known.
func (all *gpus) giveUp() {
	for _, g := range all.list() {
		if name, known := all.name(g.bytes); !known || name != g.uuid {
			all.mu.Lock()
			delete(all.by, g.bytes)
			all.mu.Unlock()
		}
	}
}

// misplaced reports whether a session has a GPU that is governed only now, or
// was given up; the next session of its process has the right one.
func (all *gpus) misplaced(s *session) bool {
	if slices.ContainsFunc(s.strange, func(uuid [16]byte) bool { return all.of(uuid) != nil }) {
		return true
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	return slices.ContainsFunc(s.seats, func(t *seat) bool { return t != nil && all.by[t.gpu.bytes] != t.gpu })
}

// strangers records that a session has ungoverned GPUs. It does not log each
// one: a process can invent any number.
func (all *gpus) strangers(s *session) {
	all.counters.ungoverned.Add(1)
	if !all.met.again(all.common) {
		return
	}
	names := make([]string, len(s.strange))
	for i, uuid := range s.strange {
		names[i] = written("GPU", uuid)
	}
	what := "no quota applies on GPUs that this host is not known to have: programs run there without limits"
	if all.options.FailClosed {
		what = "GPUs that this host is not known to have are closed: programs wait there, and get no memory"
	}
	all.log.Warn(what, "pid", s.facts.PID, "uid", s.facts.UID, "tenant", s.tenant, "gpus", names)
}

// list returns all of them.
func (all *gpus) list() []*gpu {
	all.mu.Lock()
	defer all.mu.Unlock()
	return slices.Collect(maps.Values(all.by))
}
