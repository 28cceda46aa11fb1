// Package residency decides which workloads have their memory on a GPU, and
// which wait on the host: those that do not use the GPU give way, and where GPUs
// are overcommitted, so do those that have had their turn. It is pure: no clock,
// no input or output.
//
// Idle workloads give way by their terms. On an overcommitted GPU, claims are
// served by priority and then by the time of the request, and residents give way
// after their turn.
package residency

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
)

// Spare are the bytes that stay free on a GPU when a workload is brought back.
const Spare = 256 << 20

// efficiency is the part of a GPU's time that turns leave at least: a turn is
// longer than asked if moving workloads takes long. Decisions take some seconds
// too, so that four fifths are left in the end.
const efficiency = .85

// patience is the wait, at a tick of a second, after which a claim of priority low counts as one of
// priority normal, so that it does not wait for as long as others work.
const patience = time.Hour

// A Phase is where the memory of a workload is.
type Phase int

// The phases.
const (
	Resident  Phase = iota // on its GPUs
	Moving                 // being suspended or resumed
	Suspended              // on the host
)

// A Word is an objection of processes to their suspension. It may be a lie, and does not
// count beyond what their tenant is guaranteed.
type Word int

// The words. On an overcommitted GPU nobody gets unified memory beyond a guarantee, so
// a process that claims to have some is not believed. A process that says that it shares
// memory may be right, and the driver may break it: only a workload of a higher priority
// takes its place.
const (
	Nothing Word = iota
	Stays        // it has unified memory
	Shares       // it shares memory with other processes
)

// A Workload is a workload with memory on GPUs, or suspended.
type Workload struct {
	audit.Subject
	Phase    Phase
	Since    time.Time         // when the phase began; a resident's: its turn
	Bytes    map[string]uint64 // of GPU memory by UUID: what it has, or had
	Priority policy.Priority
	Idle     time.Duration // since it last used a GPU
	Known    bool          // whether Idle is known
	Wants    bool          // a suspended one: it tried to use a GPU, or was ordered back
	Fixed    bool          // it cannot be suspended: it was refused, or is a client of MPS
	Says     Word
	Reclaim  policy.Reclaim
	// bytes by UUID that are guaranteed to its tenant: while its tenant has no
	// more there, it yields only if it is idle
	Guaranteed map[string]uint64
}

// A Request is an allocation that waits for room on an overcommitted GPU.
type Request struct {
	audit.Subject
	GPU      string // UUID
	Bytes    uint64
	Since    time.Time
	Priority policy.Priority
}

// A GPU is a GPU with workloads.
type GPU struct {
	Free       uint64 // bytes that nobody has, by the driver's last reading
	Size       uint64 // bytes that workloads can have; 0: unknown
	Overcommit bool
	Turn       time.Duration // for which a workload stays at least, once it is there
	Move       time.Duration // that the last change of workloads took; 0: unknown
}

// Stay returns how long a workload stays on a GPU before another may take its
// place: longer than Turn, if the moves take so long that the GPU would be idle
// for more than a fifth of the time.
func (g GPU) Stay() time.Duration {
	return max(g.Turn, time.Duration(float64(g.Move)*efficiency/(1-efficiency)))
}

// A State is the input of a decision.
type State struct {
	Now       time.Time
	Tick      audit.Tick // from one decision to the next
	Workloads []Workload
	Requests  []Request
	GPUs      map[string]GPU // by UUID
}

// An Order is a workload to suspend or to bring back.
type Order struct {
	audit.Subject
	Suspend bool // otherwise: bring it back
	Why     string
}

// A claim is a workload that waits: for its memory to come back, or for more.
type claim struct {
	audit.Subject
	bytes    map[string]uint64
	room     map[string]uint64 // that it needs
	since    time.Time
	priority policy.Priority
	back     bool // a suspended workload
}

// Decide returns what to do now. A workload is in one order at most.
//
// An idle workload gives way when its terms say so. One that wants to come back
// does so when there is room. On an overcommitted GPU without room, the claims
// are served one after the other, the highest priority first and then the one
// that was sent away, or asked for more, first (see patience): idle workloads give way first,
// and then those that had their turn and whose priority is not higher. Nobody gives way
// unless that makes enough room. Room on a claim's GPUs is kept for it, unless those that
// need not give way leave too little.
func Decide(s State) (orders []Order) {
	s.Workloads = s.order()
	gone := map[audit.Subject]bool{}
	for _, w := range s.Workloads {
		if s.reclaimable(w) {
			gone[w.Subject] = true
			orders = append(orders, Order{w.Subject, true,
				fmt.Sprintf("it held %s and did not use the GPU for %s", quota.Size(w.sum()), w.Idle.Round(time.Second))})
		}
	}
	free := map[string]uint64{}
	for uuid := range s.GPUs {
		free[uuid] = s.free(uuid)
	}
	blocked := map[string]bool{} // GPUs for which an earlier claim waits
	for _, c := range s.claims() {
		if gone[c.Subject] || c.waits(blocked) {
			continue
		}
		if c.fits(free) {
			c.take(free)
			if c.back {
				orders = append(orders, Order{c.Subject, false, "it uses the GPU again"})
			}
			s.begin(c.Subject)
			continue
		}
		hopeless := false
		if !s.moving(c, gone) { // otherwise room may come
			victims := s.victims(c, free, gone)
			for _, w := range victims {
				gone[w.Subject] = true
				orders = append(orders, Order{w.Subject, true, c.why(w, s.Tick)})
			}
			hopeless = len(victims) == 0 && len(s.later().victims(c, free, gone)) == 0
		}
		for uuid := range c.bytes {
			if !hopeless || !s.GPUs[uuid].Overcommit { // a workload that comes to an overcommitted GPU can be suspended again
				blocked[uuid] = true
			}
		}
	}
	return orders
}

// begin begins a workload's stay: it has its memory from now on.
func (s State) begin(of audit.Subject) {
	for i := range s.Workloads {
		if w := &s.Workloads[i]; w.Subject == of {
			w.Since = s.Now
		}
	}
}

func (w Workload) sum() (all uint64) {
	for _, n := range w.Bytes {
		all += n
	}
	return all
}

// reclaimable reports whether a workload gives way by its own terms. One that
// waits for memory cannot use the GPU, and one that an operator brought back
// has as much time to do so as any other.
func (s State) reclaimable(w Workload) bool {
	idle := min(w.Idle, s.Now.Sub(w.Since))
	asks := slices.ContainsFunc(s.Requests, func(r Request) bool { return r.Subject == w.Subject })
	return w.Phase == Resident && !w.Fixed && w.Says == Nothing && w.Known && w.Reclaim.Idle > 0 && idle >= w.Reclaim.Idle &&
		w.sum() > w.Reclaim.Keep && !asks
}

// claims returns the claims in the order in which they are served.
func (s State) claims() (all []claim) {
	away := map[audit.Subject]bool{}
	for _, w := range s.Workloads {
		away[w.Subject] = w.Phase != Resident
		if w.Phase == Suspended && w.Wants {
			room := map[string]uint64{}
			for uuid, n := range w.Bytes {
				room[uuid] = max(n, min(n+Spare, s.size(uuid)))
			}
			all = append(all, claim{w.Subject, w.Bytes, room, w.Since, w.Priority, true})
		}
	}
	requests := slices.SortedFunc(slices.Values(s.Requests), func(x, y Request) int {
		return cmp.Or(cmp.Compare(x.GPU, y.GPU), cmp.Compare(x.Bytes, y.Bytes)) // those of the ranks of a workload
	})
	for _, r := range requests {
		if !away[r.Subject] { // otherwise its processes are stopped
			bytes := map[string]uint64{r.GPU: r.Bytes}
			all = append(all, claim{r.Subject, bytes, bytes, r.Since, r.Priority, false})
		}
	}
	for i := range all {
		if c := &all[i]; c.priority == policy.PriorityLow && s.Now.Sub(c.since) >= s.Tick.Of(patience) {
			c.priority = policy.PriorityNormal
		}
	}
	slices.SortStableFunc(all, func(x, y claim) int {
		return cmp.Or(-cmp.Compare(x.priority, y.priority), x.since.Compare(y.since), audit.Compare(x.Subject, y.Subject))
	})
	return all
}

// waits reports whether an earlier claim waits for one of the claim's GPUs.
func (c claim) waits(blocked map[string]bool) bool {
	for uuid := range c.bytes {
		if blocked[uuid] {
			return true
		}
	}
	return false
}

func (c claim) fits(free map[string]uint64) bool {
	for uuid, n := range c.room {
		if n > free[uuid] {
			return false
		}
	}
	return true
}

func (c claim) take(free map[string]uint64) {
	for uuid, n := range c.bytes {
		free[uuid] -= min(n, free[uuid])
	}
}

func (c claim) why(w Workload, tick audit.Tick) string {
	var needs uint64
	for _, n := range c.bytes {
		needs += n
	}
	what := "needs %s of an overcommitted GPU, "
	if c.back {
		what = "needs its %s back on an overcommitted GPU, "
	}
	text := fmt.Sprintf("%s of tenant %s "+what, c.Workload, c.Tenant, quota.Size(needs))
	if w.Known && w.Idle >= tick.Of(time.Second) {
		return text + fmt.Sprintf("which this workload did not use for %s", w.Idle.Round(time.Second))
	}
	return text + "and this workload has had its turn"
}

// held returns the bytes of a GPU that workloads have, or will have when they are there.
func (s State) held(uuid string) (sum uint64) {
	for _, w := range s.Workloads {
		if w.Phase != Suspended {
			sum += w.Bytes[uuid]
		}
	}
	return sum
}

// free returns the bytes of a GPU that are free, less those of workloads that are on
// the way there or came since the driver's reading.
func (s State) free(uuid string) uint64 {
	g := s.GPUs[uuid]
	if g.Size == 0 {
		return g.Free
	}
	return min(g.Free, g.Size-min(g.Size, s.held(uuid)))
}

// size returns the bytes of a GPU that workloads can have.
func (s State) size(uuid string) uint64 { return s.free(uuid) + s.held(uuid) }

// moving reports whether a workload is on its way from or to a GPU for which a
// claim waits.
func (s State) moving(c claim, gone map[audit.Subject]bool) bool {
	for _, w := range s.Workloads {
		if w.Phase != Moving && !gone[w.Subject] {
			continue
		}
		for uuid := range c.bytes {
			if w.Bytes[uuid] > 0 {
				return true
			}
		}
	}
	return false
}

// victims returns the workloads that give way for a claim; none if that would
// not make enough room.
func (s State) victims(c claim, free map[string]uint64, gone map[audit.Subject]bool) (all []Workload) {
	missing := map[string]uint64{}
	for uuid, n := range c.room {
		if n > free[uuid] {
			missing[uuid] = n - free[uuid]
		}
	}
	gone = maps.Clone(gone)
	for _, w := range s.Workloads {
		if w.Phase != Resident || w.Fixed || gone[w.Subject] || w.Subject == c.Subject ||
			!w.helps(missing, all) || !s.yields(w, c, gone) {
			continue
		}
		gone[w.Subject] = true
		all = append(all, w)
	}
	for uuid := range missing {
		if lacks(missing, all, uuid) {
			return nil
		}
	}
	for i := len(all) - 1; i >= 0; i-- { // a later one may have made an earlier one needless
		if rest := slices.Delete(slices.Clone(all), i, i+1); !all[i].helps(missing, rest) {
			all = rest
		}
	}
	return all
}

// lacks reports whether a GPU has too few of the missing bytes without the
// victims.
func lacks(missing map[string]uint64, victims []Workload, uuid string) bool {
	var sum uint64
	for _, w := range victims {
		sum += w.Bytes[uuid]
	}
	return sum < missing[uuid]
}

// helps reports whether a workload has some of the bytes that are missing
// without other victims.
func (w Workload) helps(missing map[string]uint64, others []Workload) bool {
	for uuid := range w.Bytes {
		if lacks(missing, others, uuid) {
			return true
		}
	}
	return false
}

// yields reports whether a resident gives way for a claim, once others are
// gone. It does on each of its GPUs, since it leaves all of them.
func (s State) yields(w Workload, c claim, gone map[audit.Subject]bool) bool {
	for uuid, n := range w.Bytes {
		g := s.GPUs[uuid]
		stayed := s.Now.Sub(w.Since)
		switch {
		case n == 0:
		case !g.Overcommit, stayed < g.Stay(),
			w.Says != Nothing && s.has(w.Tenant, uuid, gone) <= w.Guaranteed[uuid], w.Says == Shares && w.Priority >= c.priority:
			return false
		case w.Known && w.Idle >= g.Stay(): // it does not miss the GPU
		case w.Priority > c.priority, s.has(w.Tenant, uuid, gone) <= w.Guaranteed[uuid]:
			return false
		}
	}
	return true
}

// has returns the bytes that a tenant has on a GPU once others are gone.
func (s State) has(tenant, uuid string, gone map[audit.Subject]bool) (sum uint64) {
	for _, w := range s.Workloads {
		if w.Tenant == tenant && w.Phase == Resident && !gone[w.Subject] {
			sum += w.Bytes[uuid]
		}
	}
	return sum
}

// later returns the state when everybody has had its turn.
func (s State) later() State {
	s.Now = s.Now.Add(math.MaxInt64)
	return s
}

// order returns the workloads in the order in which they give way: those that say
// nothing against it, those that are idle for longest, then the lowest priority, then those that stayed
// longest.
func (s State) order() []Workload {
	all := slices.Clone(s.Workloads)
	idle := func(w Workload) time.Duration {
		if !w.Known || w.Idle < s.Tick.Of(time.Second) {
			return 0
		}
		return w.Idle
	}
	slices.SortFunc(all, func(x, y Workload) int {
		return cmp.Or(cmp.Compare(x.Says, y.Says), -cmp.Compare(idle(x), idle(y)), cmp.Compare(x.Priority, y.Priority), x.Since.Compare(y.Since),
			audit.Compare(x.Subject, y.Subject))
	})
	return all
}
