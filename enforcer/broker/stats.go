package broker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/wire"
)

// Results of requests, in addition to the codes of errors.
const (
	ok     = 0
	denied = wire.Codes
)

// counters count what happens. All goroutines write them.
type counters struct {
	requests  [wire.Types][wire.Codes + 1]atomic.Uint64 // by type, 0 unknown, and result
	admission histogram
	starved   atomic.Uint64 // times that a resource was lacking, see Broker.starve
	slowed    atomic.Uint64 // messages beyond a rate
	slow      atomic.Uint64 // sessions dropped because they do not read
	floods    atomic.Uint64 // sessions dropped because they exceeded their rate

	ungoverned atomic.Uint64 // sessions with GPUs that are not governed
}

func (c *counters) count(t wire.Type, result int) {
	if !t.Known() {
		t = 0
	}
	c.requests[t][result].Add(1)
}

func (c *counters) ended(err error) {
	switch {
	case errors.Is(err, errSlow):
		c.slow.Add(1)
	case errors.Is(err, errFlood):
		c.floods.Add(1)
	}
}

var bounds = [...]time.Duration{
	time.Microsecond, 2 * time.Microsecond, 5 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond,
	50 * time.Microsecond, 100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond,
}

type histogram struct {
	counts [len(bounds) + 1]atomic.Uint64
	sum    atomic.Int64 // ns
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) read() wire.Durations {
	d := wire.Durations{Seconds: time.Duration(h.sum.Load()).Seconds()}
	for _, b := range bounds {
		d.Bounds = append(d.Bounds, b.Seconds())
	}
	for i := range h.counts {
		d.Counts = append(d.Counts, h.counts[i].Load())
	}
	return d
}

// Stats returns the broker's books. It holds no lock for longer than a look at
// each session, and looks at each GPU once.
func (b *Broker) Stats() wire.Stats {
	all := wire.Stats{Sessions: map[string]int{}, Admission: b.counters.admission.read(), Requests: b.counters.read()}
	all.Starved = b.doubt.starves(b.clock.now())
	all.Faults = map[string]uint64{
		"slow": b.counters.slow.Load(), "flood": b.counters.floods.Load(),
		"slowed": b.counters.slowed.Load(), "starved": b.counters.starved.Load(),
		"ungoverned": b.counters.ungoverned.Load(),
	}
	for _, name := range stateNames {
		all.Sessions[name] = 0
	}
	hooks := map[string]wire.HookStats{}
	b.roll.mu.Lock()
	for _, s := range b.roll.sessions {
		at := state(s.state.Load())
		all.Sessions[stateNames[at]]++
		if at >= authenticated && at < closing {
			h := hooks[s.hook]
			hooks[s.hook] = wire.HookStats{Version: s.hook, ABI: abi, Sessions: h.Sessions + 1,
				Unknown: max(h.Unknown, s.unknown.Load())}
		}
	}
	b.roll.mu.Unlock()
	gpus := b.gpus.list()
	all.Hooks = versions(hooks)
	slices.SortFunc(gpus, func(x, y *gpu) int { return cmp.Compare(x.uuid, y.uuid) })
	b.times.do(func() { b.times.scheduler.Look(b.times.now) })
	b.times.mu.Lock()
	for _, g := range gpus {
		g.stats(&all)
	}
	b.times.mu.Unlock()
	if enforcer := b.options.Enforcer; enforcer != nil {
		all.Enforcer = enforcer()
	}
	return all
}

// mostVersions bounds the versions of hooks that are told apart: a program says what it likes.
const mostVersions = 16

// versions returns the hooks by version. Of too many, those with the fewest sessions are one, whose name no program has.
func versions(hooks map[string]wire.HookStats) []wire.HookStats {
	all := slices.SortedFunc(maps.Values(hooks), func(x, y wire.HookStats) int {
		return cmp.Or(cmp.Compare(y.Sessions, x.Sessions), cmp.Compare(x.Version, y.Version))
	})
	if len(all) > mostVersions {
		others := wire.HookStats{Version: "(others)", ABI: abi}
		for _, h := range all[mostVersions:] {
			others.Sessions, others.Unknown = others.Sessions+h.Sessions, max(others.Unknown, h.Unknown)
		}
		all = append(all[:mostVersions], others)
	}
	slices.SortFunc(all, func(x, y wire.HookStats) int { return cmp.Compare(x.Version, y.Version) })
	return all
}

// abi is the protocol's version: all sessions have the same major.
var abi = fmt.Sprintf("%d.%d", wire.Major, wire.Minor)

// read returns the counters that are not zero.
func (c *counters) read() []wire.RequestStats {
	var all []wire.RequestStats
	for t := range c.requests {
		for result := range c.requests[t] {
			if n := c.requests[t][result].Load(); n > 0 {
				all = append(all, wire.RequestStats{Op: wire.Type(t).String(), Result: resultName(result), Count: n})
			}
		}
	}
	return all
}

func resultName(result int) string {
	switch result {
	case ok:
		return "ok"
	case denied:
		return "denied"
	case int(wire.CodeDenied):
		return "forbidden" // denied is of memory
	}
	return wire.Code(result).String()
}

// stats adds the books of one GPU.
func (g *gpu) stats(all *wire.Stats) {
	system := g.schedule.System()
	all.GPUs = append(all.GPUs, wire.GPUStats{GPU: g.uuid, HandoverSeconds: system.Handover.Seconds(),
		TogetherSeconds: system.Together.Seconds(),
		Preempted:       system.Preempted, Gangs: system.Gangs})
	for _, p := range slices.Concat(g.parties, g.past) {
		sums, memory := g.sum(p), g.memory.Usage(p.name)
		t := wire.TenantStats{
			Tenant: p.name, GPU: g.uuid, Sessions: len(p.seats), Weight: p.quota.weight(), Limit: p.quota.Limit,
			ChargedSeconds: sums.Charged.Seconds(), ServedSeconds: sums.Served.Seconds(),
			WantedSeconds: sums.Wanted.Seconds(),
			LagSeconds:    g.schedule.Lag(p.name).Seconds(), ConvoySeconds: sums.Convoy.Seconds(),
			LongestSeconds: p.longest.most().Seconds(),
			GatePassed:     p.passed, GateErrors: p.errors, Uncounted: p.uncounted, Turns: sums.Turns,
			SliceSeconds: p.slice().Seconds(), SlicesRefused: p.refused, Pace: p.state.Pace,
			OverrunSeconds: sums.Overrun.Seconds(), Overruns: sums.Overruns,
			WaitSeconds: sums.Waited.Seconds(), ThrottledSeconds: p.overhead.Seconds(), Launches: p.launches,
			CopiedBytes: p.copied, Waits: sums.Waits, LateWaits: sums.Late,
			MemoryCap: memory.Cap, MemoryUsed: memory.Committed + memory.Dead, MemoryReserved: memory.Reserved,
			MemoryUnlisted: min(memory.Unlisted, memory.Committed+memory.Reserved+memory.Dead), MemoryPeak: memory.Peak, MemoryDenied: memory.Denied,
			MemoryAsked: memory.Asked, MemoryMissed: memory.Missed,
		}
		if t.Limit <= 0 {
			t.Limit = 1
		}
		t.Share1s.Actual, t.Share1s.Target = g.schedule.Shares(p.name, time.Second)
		t.Share10s.Actual, t.Share10s.Target = g.schedule.Shares(p.name, 10*time.Second)
		all.Tenants = append(all.Tenants, t)
	}
}

// stats answers STATS with a file of JSON, if the user may see everything.
func (x message) stats() *refusal {
	if may := x.b.options.Observer; x.facts.UID != 0 && int(x.facts.UID) != os.Geteuid() &&
		(may == nil || !may(x.facts.UID)) {
		return &refusal{wire.CodeDenied, "statistics are for root, the broker's own user and the observer's", true}
	}
	x.due.Store(0)
	x.state.CompareAndSwap(int32(connecting), int32(observing))
	switch {
	case x.unread() > 0:
		return refusedUnread
	case !x.user.asks.take(x.b.clock.now(), x.b.timing.asks):
		return refusedAsks
	}
	file, err := memfd("gpusteward-stats")
	if err != nil {
		return x.b.doubt.want(err)
	}
	out := os.NewFile(uintptr(file), "gpusteward-stats")
	defer func() { _ = out.Close() }()
	text := new(bytes.Buffer)
	encoder := json.NewEncoder(text)
	encoder.SetEscapeHTML(false) // a program that chooses names would make the answer six times as long
	if err = encoder.Encode(x.b.Stats()); err == nil {
		_, err = out.WriteAt(text.Bytes(), 0) // the reader shares the position
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return refuse(wire.CodeLimit, err)
	}
	return x.hand(x.answer(wire.TypeStatsReply), file)
}

// hand answers a message with a frame and descriptors, which remain the
// caller's. If a descriptor cannot be had or too many are in flight, the
// session ends.
func (x message) hand(frame []byte, descriptors ...int) *refusal {
	err := sendWith(x.fd, frame, descriptors...)
	if starving(err) {
		return x.b.doubt.want(err)
	}
	x.b.counters.count(x.Type, ok)
	x.fault = err
	return nil
}
