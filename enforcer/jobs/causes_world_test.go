package jobs

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gpusteward/internal/wire"
)

// This world has one process whose steps become longer for a reason, among
// circumstances that are true all day and are not the reason. It shares only the
// format of the trace with the world of hangs.

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
	evaluate int // each so many steps
}

var styles = []style{
	{name: "eager", kernels: 24, kernel: 4 * time.Millisecond, call: 300 * time.Microsecond, waits: 1, queue: 1024,
		input: 1 << 18},
	{name: "eager, bound by launches", kernels: 120, kernel: 100 * time.Microsecond, call: 500 * time.Microsecond,
		waits: 1, queue: 1024},
	{name: "a wait each tenth step", kernels: 20, kernel: 5 * time.Millisecond, call: 200 * time.Microsecond, waits: 10,
		queue: 1024, noted: true, input: 1 << 16},
	{name: "no wait", kernels: 20, kernel: 6 * time.Millisecond, call: 200 * time.Microsecond, queue: 128, noted: true},
	{name: "like JAX", kernels: 12, kernel: 10 * time.Millisecond, call: 100 * time.Microsecond, queue: 48},
	{name: "bound by data", kernels: 15, kernel: 3 * time.Millisecond, call: 200 * time.Microsecond, waits: 1,
		queue: 1024, data: 110 * time.Millisecond, input: 1 << 18},
	{name: "data parallel", kernels: 24, kernel: 8 * time.Millisecond, call: 300 * time.Microsecond, waits: 1,
		queue: 1024, buckets: 4, input: 1 << 18},
	{name: "accumulation", kernels: 10, kernel: 10 * time.Millisecond, call: 300 * time.Microsecond, waits: 1,
		queue: 1024, batches: 4, buckets: 2},
	{name: "graphs", kernels: 1, kernel: 80 * time.Millisecond, call: time.Millisecond, waits: 1, queue: 64, graph: true,
		input: 1 << 18},
	{name: "evaluations", kernels: 20, kernel: 5 * time.Millisecond, call: 300 * time.Microsecond, waits: 1, item: true,
		queue: 1024, evaluate: 150},
}

// An effect is what makes steps longer.
type effect struct {
	gpu, host             float64       // kernels, and the thread's calls, take so much longer
	sleeps, computes      time.Duration // without a call
	held, copies, reduces time.Duration // each time
	allocs, more          int           // allocations, launches
}

// A reason is a cause with its effect at a strength, and what is known of it. The
// world finds the strength that makes steps longer by a given part.
type reason struct {
	name   string
	effect func(strength float64) effect
	fits   func(s *style) bool
	known  func(k *known, strength float64)
}

// known is what the agent and the kernel know.
type known struct {
	Evidence
	cpu, io float64 // pressure, in percent
}

func slower(k *known, strength float64) {
	if k.Clock > 0 {
		k.Clock /= math.Pow(1+strength, 1.15) // some kernels do not depend on the clock
	}
}

func ms(strength float64) time.Duration { return time.Duration(strength * 1e6) }

var reasons = []reason{
	{name: "power", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Power = true; slower(k, s) }},
	{name: "thermal", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Thermal = true; slower(k, s) }},
	{name: "clocks", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Power = false; slower(k, s) }},
	{name: "neighbour", effect: func(s float64) effect { return effect{gpu: s} },
		known: func(k *known, s float64) { k.Neighbours = max(0.15, s/(1+s)) }},
	{name: "cpu", effect: func(s float64) effect { return effect{host: s} },
		known: func(k *known, _ float64) { k.cpu = max(k.cpu*1.7, 35) }},
	{name: "storage", effect: func(s float64) effect { return effect{sleeps: ms(s)} },
		known: func(k *known, _ float64) { k.io = max(k.io*1.8, 30) }},
	{name: "host", effect: func(s float64) effect { return effect{sleeps: ms(s)} }},
	{name: "code", effect: func(s float64) effect { return effect{computes: ms(s)} }},
	{name: "quota", effect: func(s float64) effect { return effect{held: ms(s)} }},
	{name: "collective", effect: func(s float64) effect { return effect{reduces: ms(s)} },
		fits: func(s *style) bool { return s.buckets > 0 }},
	{name: "link", effect: func(s float64) effect { return effect{reduces: ms(s), copies: ms(s)} },
		fits:  func(s *style) bool { return s.buckets > 0 || s.input >= 1<<18 },
		known: func(k *known, _ float64) { k.PCIe, k.NVLink = k.PCIe/2, k.NVLink/2 }},
	{name: "copy", effect: func(s float64) effect { return effect{copies: ms(s)} },
		fits: func(s *style) bool { return s.input >= 1<<18 }},
	{name: "memory", effect: func(s float64) effect { return effect{allocs: int(s)} }},
	{name: "work", effect: func(s float64) effect { return effect{more: int(s)} },
		fits: func(s *style) bool { return !s.graph && s.data == 0 }},
}

// A worker is a process of a style. Its thread, its GPU and its collectives have
// each come to a time.
type trainer struct {
	*rand.Rand
	style
	effect
	noise         float64
	spins         bool // on a processor while it waits
	thread        int64
	gpu, network  int64
	loader        int64
	steps         int
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
		p.events = append(p.events, entry{at: p.thread, kind: kind, id: id})
	}
}

// calls lets the thread's own code run.
func (p *trainer) calls(d time.Duration) {
	own := p.about(d)
	late := int64(float64(own) * p.host)
	p.thread += own + late
	p.used, p.delayed = p.used+own, p.delayed+late
}

// until lets the thread wait.
func (p *trainer) until(at int64) {
	if at > p.thread {
		if p.spins {
			p.used += at - p.thread
		}
		p.thread = at
	}
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
	p.gpu = begin + int64(float64(p.about(d))*(1+p.effect.gpu))
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

// step is one step.
func (p *trainer) step() {
	p.steps++
	if p.steps%100 == 0 {
		p.thread += p.about(80 * time.Millisecond) // something else, now and then
	}
	if p.held > 0 {
		p.note(wire.EventHeld, 0)
		p.until(p.thread + p.about(p.held))
		p.note(wire.EventReleased, 0)
	}
	p.loader = max(p.loader+p.about(p.data+p.sleeps), p.thread-int64(p.data)) // it prefetches one batch
	if p.data > 0 {
		p.thread = max(p.thread, p.loader)
	} else {
		p.thread += p.about(p.sleeps + 2*time.Millisecond)
	}
	own := p.about(p.computes)
	p.thread, p.used = p.thread+own, p.used+own
	if p.input > 0 {
		p.note(wire.EventCopying, p.input)
		p.until(p.thread + p.about(time.Duration(p.input)*64/8+p.copies)) // 8 GB/s
		p.note(wire.EventCopied, p.input)
	}
	for range p.allocs {
		p.note(wire.EventAlloc, 512)
		p.thread += p.about(1500 * time.Microsecond)
	}
	for batch := range max(1, p.batches) {
		for i := range p.kernels + p.more {
			p.launch(100+i%p.kernels%7+i/7%30*16, p.kernel)
			last := batch == max(1, p.batches)-1
			if p.buckets > 0 && last && i >= p.kernels/2 && (i-p.kernels/2)%max(1, p.kernels/2/p.buckets) == 0 {
				p.reduce(uint32(7000 + i))
			}
		}
	}
	p.gpu = max(p.gpu, p.network)
	if !p.graph {
		for i := range 4 {
			p.launch(900+i, p.kernel/8)
		}
	}
	if p.waits > 0 && p.steps%p.waits == 0 {
		p.wait()
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

// pace is how long a step takes with an effect, without noise.
func pace(s style, e effect) float64 {
	const steps = 60
	p := newTrainer(s, 1, 0)
	p.evaluate, p.effect = 0, e
	began := int64(0)
	for i := range 2 * steps {
		if i == steps {
			began = p.thread
		}
		p.step()
	}
	return float64(p.thread-began) / steps
}

// strength returns how strong a cause must be to make steps longer by a part; 0
// if it cannot.
func strength(s style, r *reason, part float64) float64 {
	usual, low, high := pace(s, effect{}), 0.0, 2000.0
	for range 24 {
		middle := (low + high) / 2
		if pace(s, r.effect(middle)) < usual*(1+part) {
			low = middle
		} else {
			high = middle
		}
	}
	if got := pace(s, r.effect(high)) / usual; math.Abs(got-1-part) > part/4 || r.effect(high).gpu > 4 {
		return 0
	}
	return high
}

// An office is one process, observed on its host.
type office struct {
	*trainer
	h     *host
	knows known
	// seconds of the clock that the observer has looked at
	looked int64
	told   string
	window []map[string]uint64
}

func newOffice(t *testing.T, s style, seed uint64, noise float64) *office {
	o := &office{trainer: newTrainer(s, seed, noise), h: newHost(t, 1)}
	o.thread = o.h.at
	o.gpu, o.network, o.loader = o.thread, o.thread, o.thread
	o.spins = o.IntN(2) == 0
	o.events = []entry{}
	o.looked = o.h.at
	o.h.Observer.Evidence = func(string) Evidence { return o.knows.Evidence }
	return o
}

// advance lets the process step for so long; again is called each second.
func (o *office) advance(d time.Duration, again func()) {
	for until := o.h.at + int64(d); o.h.at < until; {
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

// look lets the observer look.
func (o *office) look() {
	procfs := o.h.Observer.Procfs
	for file, text := range map[string]string{
		"pressure/cpu":     fmt.Sprintf("some avg10=%.2f avg60=0.00 avg300=0.00 total=0\n", o.knows.cpu),
		"pressure/io":      fmt.Sprintf("some avg10=%.2f avg60=0.00 avg300=0.00 total=0\n", o.knows.io),
		"1000/schedstat":   fmt.Sprintf("%d %d 1\n", o.used, o.delayed),
		"1000/task/.empty": ""} {
		file = filepath.Join(procfs, file)
		_ = os.MkdirAll(filepath.Dir(file), 0o755)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			o.h.t.Fatal(err)
		}
	}
	all, _ := o.h.look()
	o.told = o.tells(&all[0])
}

// tells returns the cause that is told now.
func (o *office) tells(s *wire.JobStats) string {
	now := map[string]uint64{"steps": s.Steps}
	maps.Copy(now, s.Slow)
	o.window = append(o.window, now)
	if len(o.window) < 20 {
		return ""
	}
	before := o.window[len(o.window)-20]
	sum, most, name := uint64(0), uint64(0), ""
	for cause, n := range s.Slow {
		n -= before[cause]
		if sum += n; n > most {
			most, name = n, cause
		}
	}
	if 2*sum > s.Steps-before["steps"] {
		return name
	}
	return ""
}
