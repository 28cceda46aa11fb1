package jobs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// This world has one process whose steps become longer for a reason, among circumstances that are true all day and are
// not the reason. It shares only the format of the trace with the world of hangs.

// A style is a way to write a training loop.
type style struct {
	name     string
	kernels  int           // of a batch
	kernel   time.Duration // on the GPU
	call     time.Duration // of the thread, for each launch
	waits    int           // each so many steps; 0: it never waits
	item     bool          // it waits by a copy of a few bytes
	queue    int           // launches that may be queued
	noted    bool          // the hook notes that the queue is full
	data     time.Duration // in which the loader prepares a batch
	input    uint32        // of a batch, copied while the thread waits; units of 64 bytes
	buckets  int
	batches  int // whose gradients are accumulated
	graph    bool
	evaluate int     // each so many steps
	single   bool    // one thread launches all; in others a second one launches the backward pass
	lengths  bool    // of sequences: each batch has another
	saves    int     // each so many steps
	uneven   float64 // its processor takes so much longer half of the time, for 10 s on average
}

var styles = []style{
	{name: "eager", kernels: 24, kernel: 4 * time.Millisecond, call: 300 * time.Microsecond, waits: 1, queue: 1024,
		input: 1 << 18},
	{name: "eager, bound by launches", kernels: 120, kernel: 100 * time.Microsecond, call: 500 * time.Microsecond,
		waits: 1, queue: 1024},
	{name: "a wait each tenth step", kernels: 20, kernel: 5 * time.Millisecond, call: 200 * time.Microsecond, waits: 10,
		queue: 1024, noted: true, input: 1 << 16},
	{name: "no wait", kernels: 20, kernel: 6 * time.Millisecond, call: 200 * time.Microsecond, queue: 128, noted: true},
	{name: "like JAX", kernels: 12, kernel: 10 * time.Millisecond, call: 100 * time.Microsecond, queue: 48,
		single: true},
	{name: "bound by data", kernels: 15, kernel: 3 * time.Millisecond, call: 200 * time.Microsecond, waits: 1,
		queue: 1024, data: 110 * time.Millisecond, input: 1 << 18},
	{name: "data parallel", kernels: 24, kernel: 8 * time.Millisecond, call: 300 * time.Microsecond, waits: 1,
		queue: 1024, buckets: 4, input: 1 << 18},
	{name: "accumulation", kernels: 10, kernel: 10 * time.Millisecond, call: 300 * time.Microsecond, waits: 1,
		queue: 1024, batches: 4, buckets: 2},
	{name: "graphs", kernels: 1, kernel: 80 * time.Millisecond, call: time.Millisecond, waits: 1, queue: 64, graph: true, single: true,
		input: 1 << 18},
	{name: "evaluations", kernels: 20, kernel: 5 * time.Millisecond, call: 300 * time.Microsecond, waits: 1, item: true,
		queue: 1024, evaluate: 150},
	{name: "sequences", kernels: 24, kernel: 4 * time.Millisecond, call: 300 * time.Microsecond, waits: 1, queue: 1024,
		input: 1 << 12, lengths: true},
	{name: "checkpoints", kernels: 20, kernel: 5 * time.Millisecond, call: 300 * time.Microsecond, waits: 1, queue: 1024,
		input: 1 << 16, saves: 200},
}

// An effect is what makes steps longer.
type effect struct {
	gpu, host             float64       // kernels, and the thread's calls, take so much longer
	longer                float64       // sequences, by this part
	stopped               float64       // part of each 100 ms in which its threads get no processor
	sleeps, computes      time.Duration // without a call, as a mean of steps
	each                  int           // steps, of which one has what its neighbours do not; 0: all have it
	held, copies, reduces time.Duration // each time
	allocs, more          int           // allocations, launches
	segments              int           // that are freed and allocated again, because the memory is full
}

func (e effect) plus(o effect) effect {
	return effect{gpu: e.gpu + o.gpu, host: e.host + o.host, sleeps: e.sleeps + o.sleeps,
		computes: e.computes + o.computes, held: e.held + o.held, copies: e.copies + o.copies,
		reduces: e.reduces + o.reduces, allocs: e.allocs + o.allocs, more: e.more + o.more, longer: e.longer + o.longer,
		stopped: max(e.stopped, o.stopped), each: max(e.each, o.each), segments: e.segments + o.segments}
}

// A reason is a cause with its effect at a strength, and what is known of it. The
// world finds the strength that makes steps longer by a given part.
type reason struct {
	name   string
	how    string
	effect func(strength float64) effect
	fits   func(s *style) bool
	known  func(k *known, strength float64)
	kind   string // nothing tells which of two reasons of a kind is the greater; empty: its name
}

// known is what the agent and the kernel know.
type known struct {
	Evidence
	cpu, io, memory float64 // pressure, in percent
}

func slower(k *known, strength float64) {
	if k.Clock > 0 {
		k.Clock /= math.Pow(1+strength, 1.15) // some kernels do not depend on the clock
	}
}

func ms(strength float64) time.Duration { return time.Duration(strength * 1e6) }

var reasons = []reason{
	{name: "power", kind: "clock", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Power = true; slower(k, s) }},
	{name: "thermal", kind: "clock", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Thermal = true; slower(k, s) }},
	{name: "clocks", kind: "clock", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Power = false; slower(k, s) }},
	{name: "neighbour", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Neighbours = max(0.15, s/(1+s)) }},
	{name: "cpu", effect: func(s float64) effect { return effect{host: s} },
		known: func(k *known, _ float64) { k.cpu = max(k.cpu*1.7, 35) }},
	{name: "storage", kind: "sleep", effect: func(s float64) effect { return effect{sleeps: ms(s)} },
		known: func(k *known, _ float64) { k.io = max(k.io*1.8, 30) }},
	{name: "host", kind: "sleep", effect: func(s float64) effect { return effect{sleeps: ms(s)} }},
	{name: "code", effect: func(s float64) effect { return effect{computes: ms(s)} }},
	{name: "quota", effect: func(s float64) effect { return effect{held: ms(s)} }},
	{name: "collective", kind: "link", effect: func(s float64) effect { return effect{reduces: ms(s)} },
		fits: func(s *style) bool { return s.buckets > 0 }},
	{name: "link", effect: func(s float64) effect { return effect{reduces: ms(s), copies: ms(s)} },
		fits:  func(s *style) bool { return s.buckets > 0 || s.input >= 1<<18 },
		known: func(k *known, _ float64) { k.PCIe, k.NVLink = k.PCIe/2, k.NVLink/2 }},
	{name: "copy", kind: "link", effect: func(s float64) effect { return effect{copies: ms(s)} },
		fits: func(s *style) bool { return s.input >= 1<<18 }},
	{name: "memory", effect: func(s float64) effect { return effect{allocs: int(s)} }},
	{name: "work", effect: func(s float64) effect { return effect{more: int(s)} },
		fits: func(s *style) bool { return !s.graph && s.data == 0 }},
	{name: "cpu", how: "the quota of its cgroup", effect: func(s float64) effect { return effect{stopped: s / (1 + s)} },
		known: func(k *known, s float64) { k.cpu = max(k.cpu, 100*s/(1+s)) }},
	{name: "code", how: "garbage collection", effect: func(s float64) effect { return effect{computes: ms(s), each: 8} }},
	{name: "storage", how: "stalls", kind: "sleep", effect: func(s float64) effect { return effect{sleeps: ms(s), each: 8} },
		known: func(k *known, _ float64) { k.io = max(k.io*1.8, 30) }},
	{name: "reclaim", kind: "sleep", effect: func(s float64) effect { return effect{sleeps: ms(s / 2), computes: ms(s / 2)} },
		known: func(k *known, _ float64) { k.memory, k.io = 30, max(k.io*1.6, 25) }}, // what was evicted is read again
	{name: "memory", how: "full", effect: func(s float64) effect { return effect{segments: int(s)} }},
	{name: "work", how: "longer sequences", effect: func(s float64) effect { return effect{longer: s} },
		fits: func(s *style) bool { return s.lengths }},
}

// A rhythm is how slowness comes: little by little, or in waves.
type rhythm struct{ ramp, on, off time.Duration }

var rhythms = []rhythm{{}, {ramp: 20 * time.Second}, {ramp: 40 * time.Second}, {on: 20 * time.Second, off: 10 * time.Second}}

// part returns how much of the slowness is there after so much time, 0 to 1.
func (y rhythm) part(passed time.Duration) float64 {
	switch {
	case passed < y.ramp:
		return float64(passed) / float64(y.ramp)
	case y.on > 0 && passed%(y.on+y.off) >= y.on:
		return 0
	}
	return 1
}

// A trainer is a process of a style. Its thread, its GPU and its collectives have each come to a time.
type trainer struct {
	*rand.Rand
	style
	effect
	noise         float64
	spins         bool  // on a processor while it waits
	late          bool  // its processor takes longer now
	turns         int64 // when that changes
	thread        int64
	gpu, network  int64
	loader        int64
	steps         int
	length        float64 // of the batch's sequences, about 1
	place         uint16  // of the thread that launches
	ends          []int64 // of queued launches
	queued        int
	entered       uint64
	used, delayed int64 // ns on a processor, and waiting for one
	work          []rest
	events        []entry // nil: nobody looks
}

func (p *trainer) about(d time.Duration) int64 {
	return int64(float64(d) * math.Exp(p.noise*p.NormFloat64()))
}

func (p *trainer) note(kind wire.EventKind, id uint32) {
	if p.events != nil {
		p.events = append(p.events, entry{at: p.thread, kind: kind, id: id, thread: p.place})
	}
}

// pace returns how much longer the thread's own code takes now. On the hosts of GPUs in a
// cloud the same code took 18 or 26 ns, as others used the other half of the core.
func (p *trainer) pace() float64 {
	for p.uneven > 0 && p.thread >= p.turns {
		p.late = !p.late
		p.turns = max(p.turns, p.thread) + int64(p.ExpFloat64()*10e9)
	}
	if p.late {
		return 1 + p.uneven
	}
	return 1
}

// calls lets the thread's own code run.
func (p *trainer) calls(d time.Duration) {
	own := int64(float64(p.about(d)) * p.pace())
	late := int64(float64(own) * p.host)
	p.thread += own + late
	p.used, p.delayed = p.used+own, p.delayed+late
	p.stops()
}

// stops lets the thread stand until the next period if the quota of this one is used up.
func (p *trainer) stops() {
	const period = 100e6
	if left := period - p.thread%period; float64(left) < p.stopped*period {
		p.thread, p.delayed = p.thread+left, p.delayed+left
	}
}

// lump returns the part of a mean time that this step has.
func (p *trainer) lump(d time.Duration) time.Duration {
	switch {
	case p.each == 0:
		return d
	case p.steps%p.each > 0:
		return 0
	}
	return d * time.Duration(p.each)
}

// until lets the thread wait.
func (p *trainer) until(at int64) {
	if at > p.thread {
		if p.spins {
			p.used += at - p.thread
		}
		p.thread = at
	}
	p.stops()
}

func (p *trainer) launch(id int, d time.Duration) {
	p.calls(p.call)
	kind := wire.EventLaunch
	if p.graph {
		kind = wire.EventGraph
	}
	slot := &p.ends[p.queued%len(p.ends)]
	p.queued++
	if p.noted && *slot > p.thread {
		p.note(wire.EventWait, 0)
		p.until(*slot)
		p.note(wire.EventWaited, 0)
	}
	p.note(kind, uint32(id))
	p.until(*slot)
	begin := max(p.gpu, p.thread)
	p.gpu = begin + int64(float64(p.about(d))*(1+p.effect.gpu)*p.length*(1+p.longer))
	*slot = p.gpu
	p.work = append(p.work, rest{begin, p.gpu})
}

func (p *trainer) wait() {
	begin, end := wire.EventWait, wire.EventWaited
	if p.item {
		begin, end = wire.EventCopying, wire.EventCopied
	}
	p.note(begin, 1)
	p.until(max(p.gpu, p.network))
	p.note(end, 1)
}

// reduce is a collective, beside the kernels.
func (p *trainer) reduce(bytes uint32) {
	p.calls(p.call)
	p.entered++
	p.note(wire.EventCollective, bytes)
	begin := max(p.gpu, p.network)
	p.network = begin + p.about(6*time.Millisecond+p.reduces)
	p.work = append(p.work, rest{begin, p.network})
	if p.events != nil {
		p.events = append(p.events, entry{at: p.network, kind: wire.EventCollected, id: uint32((p.network - begin) / 1000)})
	}
}

// copy is a copy for which the thread waits; units of 64 bytes.
func (p *trainer) copy(size uint32, late time.Duration) {
	p.note(wire.EventCopying, size)
	p.until(p.thread + p.about(time.Duration(size)*64/8+late)) // 8 GB/s
	p.note(wire.EventCopied, size)
}

// reallocate gives all segments back, which waits for the GPU, and allocates them again.
func (p *trainer) reallocate() {
	p.launch(100, p.kernel)
	p.wait()
	for range p.segments {
		p.note(wire.EventFree, 0)
		p.thread += p.about(2 * time.Millisecond)
	}
	for range p.segments {
		p.note(wire.EventAlloc, 512)
		p.thread += p.about(3 * time.Millisecond)
	}
}

// save is a checkpoint of 8 GB: it is copied to the host, prepared and written.
func (p *trainer) save() {
	for range 100 {
		p.copy(1<<20, 0)
	}
	own := p.about(time.Second / 2)
	p.thread, p.used = p.thread+own, p.used+own
	p.thread += p.about(2 * time.Second)
}

// step is one step.
func (p *trainer) step() {
	p.steps++
	p.length = 1
	if p.lengths && p.noise > 0 {
		p.length = math.Exp(0.25 * p.NormFloat64())
	}
	if p.noise > 0 && p.IntN(60) == 0 {
		p.thread += p.about(time.Duration(20+p.IntN(200)) * time.Millisecond) // something else, now and then
	}
	if p.held > 0 {
		p.note(wire.EventHeld, 0)
		p.thread += p.about(p.held)
		p.note(wire.EventReleased, 0)
	}
	prepares := time.Duration(float64(p.data)/(1-p.stopped)) + p.lump(p.sleeps)
	p.loader = max(p.loader+p.about(prepares), p.thread-int64(p.data)) // it prefetches one batch
	if p.data > 0 {
		p.thread = max(p.thread, p.loader)
	} else {
		p.thread += p.about(p.lump(p.sleeps) + 2*time.Millisecond)
	}
	own := p.about(p.lump(p.computes))
	p.thread, p.used = p.thread+own, p.used+own
	if p.input > 0 {
		p.copy(uint32(float64(p.input)*p.length*(1+p.longer)), p.copies)
	}
	for range p.allocs {
		p.note(wire.EventAlloc, 512)
		p.thread += p.about(1500 * time.Microsecond)
	}
	for batch := range max(1, p.batches) {
		if p.segments > 0 && batch == 0 {
			p.reallocate()
		}
		for i := range p.kernels + p.more {
			p.place = uint16(truth(!p.single && i >= p.kernels/3))
			p.launch(100+i%p.kernels%7+i/7%30*16, p.kernel)
			last := batch == max(1, p.batches)-1
			if p.buckets > 0 && last && i >= p.kernels/2 && (i-p.kernels/2)%max(1, p.kernels/2/p.buckets) == 0 {
				p.reduce(uint32(7000 + i))
			}
		}
	}
	p.gpu, p.place = max(p.gpu, p.network), 0
	if !p.graph {
		for i := range 4 {
			p.launch(900+i, p.kernel/8)
		}
	}
	if p.waits > 0 && p.steps%p.waits == 0 {
		p.wait()
	}
	if p.saves > 0 && p.steps%p.saves == 0 {
		p.save()
	}
	if p.evaluate > 0 && p.steps%p.evaluate == 0 {
		for range 25 {
			for i := range p.kernels / 2 {
				p.launch(500+i, p.kernel)
			}
			p.wait()
		}
	}
}

func newTrainer(s style, seed uint64, noise float64) *trainer {
	return &trainer{Rand: rand.New(rand.NewPCG(seed, 11)), style: s, noise: noise, thread: 1e12, gpu: 1e12,
		network: 1e12, loader: 1e12, ends: make([]int64, s.queue)}
}

// stepTime is how long a step takes with an effect, without noise.
func stepTime(s style, e effect) float64 {
	const steps = 60
	p := newTrainer(s, 1, 0)
	p.evaluate, p.saves, p.uneven, p.effect = 0, 0, 0, e
	began := int64(0)
	for i := range 2 * steps {
		if i == steps {
			began = p.thread
		}
		p.step()
	}
	return float64(p.thread-began) / steps
}

// strength returns how strong a cause must be to make steps longer by a part; 0 if it cannot.
func strength(s style, r *reason, part float64) float64 {
	usual, low, high := stepTime(s, effect{}), 0.0, 2000.0
	for range 24 {
		middle := (low + high) / 2
		if stepTime(s, r.effect(middle)) < usual*(1+part) {
			low = middle
		} else {
			high = middle
		}
	}
	if got := stepTime(s, r.effect(high)) / usual; math.Abs(got-1-part) > part/4 || r.effect(high).gpu > 4 {
		return 0
	}
	return high
}

// An office is one process, observed on its host.
type office struct {
	*trainer
	h      *host
	knows  known
	before trainer // the step
	looked int64   // by the observer
	told   string
}

func newOffice(t *testing.T, s style, seed uint64, noise float64) *office {
	o := &office{trainer: newTrainer(s, seed, noise), h: newHost(t, 1)}
	o.thread = o.h.at
	o.gpu, o.network, o.loader = o.thread, o.thread, o.thread
	o.spins = o.IntN(2) == 0
	o.events = []entry{}
	o.looked = o.h.at
	o.h.Observer.Evidence = func(string, int) Evidence { return o.knows.Evidence }
	return o
}

// advance lets the process step for so long; again is called each second.
func (o *office) advance(d time.Duration, again func()) {
	for until := o.h.at + int64(d); o.h.at < until; {
		o.before = *o.trainer
		o.step()
		for o.h.at+100e6 <= o.thread {
			o.tick()
			if o.h.at-o.looked >= 1e9 {
				o.looked = o.h.at
				o.look()
				if again != nil {
					again()
				}
			}
		}
	}
}

// tick shows what has happened within 100 ms.
func (o *office) tick() {
	o.h.at += 100e6
	r, from, n := o.h.ranks[0], o.h.at-100e6, 0
	slices.SortStableFunc(o.events, func(a, b entry) int { return int(a.at - b.at) })
	for ; n < len(o.events) && o.events[n].at <= o.h.at; n++ {
		e := o.events[n]
		r.note(e.at, e.kind, e.id)
		place := 128 + wire.Communicators*128 + int((r.head-1)%wire.EventsKept)*16 + 12
		r.put32(place, binary.NativeEndian.Uint32(r.trace[place:])|uint32(e.thread)<<20)
	}
	o.events = append(o.events[:0], o.events[n:]...)
	busy, end := int64(0), from
	for _, w := range o.work {
		if to := min(w.to, o.h.at); to > max(w.from, end) {
			busy += to - max(w.from, end)
			end = to
		}
	}
	o.work = slices.DeleteFunc(o.work, func(w rest) bool { return w.to <= o.h.at })
	if busy > 0 {
		r.note(o.h.at, wire.EventBusy, uint32(busy/1000))
	}
	if o.entered > 0 {
		for i, v := range []uint64{77, 8 << 32, o.entered, uint64(o.h.at), o.entered, 1 << 20, o.entered} {
			r.put64(128+8*i, v)
		}
	}
	r.put64(88, uint64(o.h.at))
	r.put64(96, uint64(o.h.at))
}

// scheduled writes how long the main thread ran, and waited for a processor, ns.
func (r *rank) scheduled(ran, waited int64) {
	file := filepath.Join(r.h.Observer.Procfs, fmt.Sprint(r.pid), "schedstat")
	fixture.Must(r.h.t, os.WriteFile(file, fmt.Appendf(nil, "%d %d 1\n", ran, waited), 0o600))
}

// pressures writes the host's pressure, in percent.
func (h *host) pressures(cpu, io, memory float64) {
	for name, v := range map[string]float64{"cpu": cpu, "io": io, "memory": memory} {
		fixture.Rewrite(h.t, filepath.Join(h.Observer.Procfs, "pressure", name),
			fmt.Sprintf("some avg10=%.2f avg60=0.00 avg300=0.00 total=0\n", v))
	}
}

// look lets the observer look.
func (o *office) look() {
	o.h.pressures(o.knows.cpu, o.knows.io, o.knows.memory)
	part := float64(o.h.at-o.before.thread) / float64(max(1, o.thread-o.before.thread)) // of the step
	o.h.ranks[0].scheduled(o.before.used+int64(part*float64(o.used-o.before.used)),
		o.before.delayed+int64(part*float64(o.delayed-o.before.delayed)))
	all, _ := o.h.look()
	if o.told = ""; all[0].Slowdown != nil {
		o.told = all[0].Slowdown.Cause
	}
}

// vague are the causes that name none.
const vague = "unknown gpu host"

// allDay returns circumstances that are true all day.
func allDay(r *rand.Rand) (k known) {
	k.cpu, k.io, k.PCIe, k.NVLink = r.Float64()*8, r.Float64()*8, 32e9, 450e9
	if r.IntN(6) > 0 {
		k.Clock = 0.8 + 0.2*r.Float64()
		k.Power = r.IntN(3) == 0
	}
	if r.IntN(3) == 0 {
		k.cpu = 20 + 10*r.Float64()
	}
	if r.IntN(4) == 0 {
		k.io = 15 + 10*r.Float64()
	}
	if r.IntN(3) == 0 {
		k.Neighbours = 0.001 + 0.02*r.Float64() // they idle
	}
	return k
}

// A diagnosis is what was told of a job that became slow.
type diagnosis struct {
	right, wrong, forgot, stuck bool
	before, told                string
}

// A burden is what makes a job slow: a reason, and sometimes a lesser one.
type burden struct {
	reason *reason
	strong float64
	counts bool // without it, most of the additional time goes
}

// burdens draws what makes a style slow: by a part for a reason, and in one of
// four cases by a quarter of that for another one.
func burdens(r *rand.Rand, s style, c *reason, part float64) []burden {
	all := []burden{{c, strength(s, c, part), true}}
	also := &reasons[r.IntN(len(reasons))]
	same := cmp.Or(also.kind, also.name) == cmp.Or(c.kind, c.name)
	if r.IntN(4) == 0 && !same && also.name != "work" && (also.fits == nil || also.fits(&s)) {
		if strong := strength(s, also, part/4); strong > 0 {
			alone := c.effect(all[0].strong)
			both := stepTime(s, alone.plus(also.effect(strong)))
			// What hid the lesser reason may no longer hide it beside the greater one.
			counts := both-stepTime(s, alone) >= (both-stepTime(s, effect{}))/2
			all = append(all, burden{also, strong, counts})
		}
	}
	return all
}

// slowed lets a job step, makes it slow, and healthy again. What is told first,
// within a minute of the full effect, counts.
func slowed(t *testing.T, r *rand.Rand, seed uint64, s style, all []burden) (v diagnosis) {
	c := all[0].reason
	o := newOffice(t, s, seed, 0.01+0.04*r.Float64())
	usual := allDay(r)
	if c.name == "clocks" {
		usual.Clock = max(usual.Clock, 0.8) // nothing else tells
	}
	o.knows = usual
	o.advance(time.Duration(60+r.IntN(120))*time.Second, nil)
	v.before = o.told
	rhythm, began := rhythms[r.IntN(len(rhythms))], o.h.at
	if len(all) > 1 {
		rhythm.ramp = 0 // until its end, the lesser one may be the greater
	}
	o.advance(rhythm.ramp+time.Minute, func() {
		now := rhythm.part(time.Duration(o.h.at - began))
		o.effect, o.knows = effect{}, usual
		for _, b := range all {
			if now == 0 {
				break
			}
			o.effect = o.effect.plus(b.reason.effect(b.strong * now))
			if b.reason.known != nil {
				b.reason.known(&o.knows, b.strong*now)
			}
		}
		v.told = cmp.Or(v.told, o.told)
	})
	v.right = slices.ContainsFunc(all, func(b burden) bool { return b.counts && v.told == b.reason.name }) ||
		c.name == "work" && v.told == "" // other steps
	v.wrong = v.before != "" || !v.right && v.told != "" && (c.name == "work" || !strings.Contains(vague, v.told))
	if v.right && c.name != "work" && rhythm.on == 0 && r.IntN(4) == 0 {
		o.advance(8*time.Minute, nil)
		v.forgot = o.told != v.told
	}
	o.effect, o.knows = effect{}, usual
	o.advance(time.Minute, nil)
	v.stuck = o.told != ""
	return v
}

// TestWorldOfCausesSample has one job for each cause.
func TestWorldOfCausesSample(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	for i := range reasons {
		c, strong := &reasons[i], 0.0
		s := styles[slices.IndexFunc(styles, func(s style) bool {
			if (s.buckets > 0 || s.lengths) && (c.fits == nil || c.fits(&s)) {
				strong = strength(s, c, 0.5)
			}
			return strong > 0
		})]
		r := rand.New(rand.NewPCG(uint64(i), 1))
		if v := slowed(t, r, uint64(i), s, []burden{{c, strong, true}}); !v.right || v.wrong || v.forgot || v.stuck {
			t.Errorf("%s, %s %s: %+v", s.name, c.name, c.how, v)
		}
	}
}
