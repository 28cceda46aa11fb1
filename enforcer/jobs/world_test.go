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

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// What real training jobs do. The world below does all of it but graphs that hide
// kernels without an end, and threads that stand in the kernel to read.
//
//   - Ranks run the same program. A collective on the GPU ends when the last rank
//     has come to it. A rank that waits for it spins on a processor by default, so
//     its use of processors says nothing.
//   - Gradients are reduced in buckets during the backward pass, by the thread of
//     the backward pass, on a stream of its own. Shards are gathered layer by
//     layer. Tensor parallelism calls small collectives all the time, on a
//     communicator of its own beside that of the data parallelism. Pipelines send
//     and receive, which no number counts. Graphs hide their collectives' times.
//   - A loop that never waits runs ahead until the queue is full. It then stands in
//     a launch, which looks like a launch that was the last call.
//   - One collective in so many is measured, so the last one known to have begun
//     or ended lags behind.
//   - One rank saves for minutes: it computes, writes, or stands in the kernel
//     while the others wait in the next collective. This rank may be elsewhere.
//   - All ranks evaluate without collectives, for different times. All or one
//     compile for minutes, in child processes too. Loaders stall for seconds.
//   - A job sits when it is done; a notebook sits between cells; a debugger holds
//     a rank; ranks end one after the other, the first one last; a job forms new
//     communicators after it has lost a rank.
//   - A long pause in the past says nothing about the present one.

const forever = math.MaxInt64 / 4

// A program is what all ranks of a job run.
type program struct {
	name     string
	ranks    int           // of the job
	here     int           // of them on this host
	step     time.Duration // about
	launches int           // of a step
	buckets  int           // reduced in a step
	layers   int           // small collectives of neighbours in a step
	pipeline bool          // neighbours send and receive
	ahead    int           // launches that may be queued; it waits for nothing. 0: it waits at each step
	noted    bool          // the hook notes that the queue is full
	copies   bool          // it waits by a copy
	graph    bool          // nothing is known of what has begun
	spins    bool          // who waits for the GPU uses a processor
}

var programs = []program{
	{name: "data parallel", ranks: 8, here: 8, step: 200 * time.Millisecond, launches: 40, buckets: 5, spins: true},
	{name: "two hosts", ranks: 16, here: 8, step: time.Second, launches: 60, buckets: 8, spins: true},
	{name: "short steps", ranks: 4, here: 4, step: 20 * time.Millisecond, launches: 12, buckets: 1},
	{name: "shards", ranks: 64, here: 8, step: 3 * time.Second, launches: 48, buckets: 16, copies: true, spins: true},
	{name: "tensor parallel", ranks: 8, here: 8, step: 500 * time.Millisecond, launches: 48, buckets: 2, layers: 12},
	{name: "pipeline", ranks: 8, here: 8, step: 2 * time.Second, launches: 40, buckets: 2, pipeline: true},
	{name: "accumulation", ranks: 8, here: 8, step: 15 * time.Second, launches: 120, buckets: 4, spins: true},
	{name: "graphs", ranks: 4, here: 4, step: 50 * time.Millisecond, launches: 8, buckets: 2, graph: true},
	{name: "ahead", ranks: 4, here: 4, step: 300 * time.Millisecond, launches: 40, buckets: 4, ahead: 1024},
	{name: "ahead, noted", ranks: 8, here: 8, step: 400 * time.Millisecond, launches: 30, buckets: 4, ahead: 200,
		noted: true},
	{name: "one minute", ranks: 8, here: 8, step: 60 * time.Second, launches: 60, buckets: 6, spins: true},
	{name: "many buckets", ranks: 2, here: 2, step: 40 * time.Millisecond, launches: 128, buckets: 64},
	{name: "10,000 a second", ranks: 2, here: 2, step: 12 * time.Millisecond, launches: 240, buckets: 120},
	{name: "two ranks", ranks: 2, here: 2, step: 150 * time.Millisecond, launches: 30, buckets: 3},
	{name: "alone", ranks: 1, here: 1, step: 250 * time.Millisecond, launches: 40},
}

// A world is a job on the host that is observed, and one rank that stands for those on other hosts.
type world struct {
	*rand.Rand
	program
	h       *host
	members []*actor
	ops     int                    // of the step so far
	before  func(op int, m *actor) // what happens besides; nil: nothing
	skips   func(op int, m *actor) bool
	endless func(op int, m *actor) bool // the kernel of a launch has no end
	size    func(op int, m *actor) uint64
	broken  func(op int) bool // no rank ends the collective
	vain    int64             // since then a rank waits in vain; 0: none does
	epoch   uint64            // of the communicators
	early   int               // steps before the fault; 0: so many that they are known
	lags    int64             // until then a rank may be told to be a straggler
	alarm   func(wire.HangStats)
	looked  int64
	hangs   []wire.HangStats
	late    []wire.StragglerStats
	told    func(wire.StragglerStats)
}

// A actor is a rank. Its times are those at which the thread, its GPU and the
// collectives there will have done all that was asked; forever: never.
type actor struct {
	w                 *world
	r                 *rank // nil: it is on another host
	index             int
	host, gpu, stream int64
	ends              []int64
	queued            int
	events            []entry
	marks             []mark
	entered, bytes    [3]uint64
	peers             [wire.Peers]wire.Peer // of the third communicator
	first             bool                  // it has waited for the GPU since the last collective
	collected         int64                 // the last collective
	every             uint64
	acts              []act
	ended             bool
	slow              float64 // how much longer its kernels take than the others'
	moved             uint64
	called            int64 // its last event
	rests             []rest
	files             map[string]string
}

// An entry is an event, and what a communicator then shows.
type entry struct {
	at     int64
	kind   wire.EventKind
	id     uint32
	thread uint16
	place  int
	number uint64
	bytes  uint64
	op     wire.Collective
	peers  [wire.Peers]wire.Peer
}

// A mark is a measured call.
type mark struct {
	place              int
	number             uint64
	with               int  // of an exchange: the peer's index; -1: none
	waits              bool // the compute stream waits there for the collective
	called, begin, end int64
}

// A rest is a time without work for the GPU.
type rest struct{ from, to int64 }

// busy reports whether its GPU has work now.
func (m *actor) busy() bool {
	now := m.w.h.at
	for len(m.rests) > 0 && m.rests[0].to <= now {
		m.rests = m.rests[1:]
	}
	return max(m.gpu, m.stream) > now && m.queued > 0 && (len(m.rests) == 0 || m.rests[0].from > now)
}

// An act is what a process does from a time on, as procfs shows it.
type act struct {
	from, to int64
	kind     byte // of the kinds of procfs, or c: computes, w: writes, k: its child computes
}

func newWorld(t *testing.T, p program, seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 7)), program: p, h: newHost(t, p.here)}
	for i := range p.here + min(1, p.ranks-p.here) {
		m := &actor{w: w, index: i, host: w.h.at, gpu: w.h.at, stream: w.h.at, every: 1, files: map[string]string{},
			ends: make([]int64, max(p.ahead, 1024))}
		if i < p.here {
			m.r = w.h.ranks[i]
		}
		w.members = append(w.members, m)
	}
	return w
}

func (m *actor) note(e entry) {
	if e.at = m.host; m.r != nil && m.host < forever {
		m.events = append(m.events, e)
	}
}

// spend lets the thread compute for about so long.
func (m *actor) spend(d time.Duration) {
	if m.host < forever {
		m.host += int64(float64(d) * math.Exp(0.05*m.w.NormFloat64()))
	}
}

// does lets the process do this for so long, without a call.
func (m *actor) does(kind byte, d time.Duration) {
	to := int64(forever)
	if d > 0 {
		to = m.host + int64(d)
	}
	m.acts = append(m.acts, act{m.host, to, kind})
	m.host = to
}

func (m *actor) launch(name int, thread uint16, d time.Duration) {
	m.spend(20 * time.Microsecond)
	slot := m.queued % len(m.ends)
	if m.w.noted && m.ends[slot] > m.host {
		m.note(entry{kind: wire.EventWait, thread: thread})
		m.host = m.ends[slot]
		m.note(entry{kind: wire.EventWaited, thread: thread})
	}
	m.note(entry{kind: wire.EventLaunch, id: uint32(name), thread: thread})
	if m.host >= forever {
		return
	}
	m.host = max(m.host, m.ends[slot])
	if done := max(m.gpu, m.stream); m.host > done+50e6 {
		m.rests = append(m.rests, rest{done, m.host})
	}
	m.gpu = min(forever, max(m.gpu, m.host)+int64(float64(d)*(1+m.slow)*math.Exp(0.03*m.w.NormFloat64())))
	if d >= forever {
		m.gpu = forever
	}
	m.ends[slot] = m.gpu
	m.queued++
}

func (m *actor) waits() {
	begin, end := wire.EventWait, wire.EventWaited
	if m.w.copies {
		begin, end = wire.EventCopying, wire.EventCopied
	}
	m.note(entry{kind: begin})
	m.host = max(m.host, m.gpu)
	m.spend(10 * time.Microsecond)
	m.note(entry{kind: end})
	m.first = true
}

// measures reports whether the hook measures the rank's last collective.
func (m *actor) measures(place int) bool {
	first := m.first || m.host-m.collected >= 1e6
	m.first, m.collected = false, m.host
	return first || m.entered[place]%m.every == 0
}

// exchange counts a call of one of two neighbours, and returns the peer's index.
func (m *actor) exchange(with *actor, op wire.Collective) int {
	i := slices.IndexFunc(m.peers[:], func(p wire.Peer) bool { return !p.There || p.Rank == uint32(with.index) })
	p := &m.peers[i]
	p.There, p.Rank = true, uint32(with.index)
	if (op == wire.Send) == (m.index < with.index) {
		p.Sent++
	} else {
		p.Received++
	}
	return i
}

// collect is a collective of some members at a place of their communicators.
func (w *world) collect(group []*actor, place int, bytes uint64, op wire.Collective) {
	end := int64(0)
	starts, called := make([]int64, len(group)), make([]int64, len(group))
	with, measured := make([]int, len(group)), make([]bool, len(group))
	var skips *actor // its GPU does not wait there
	for i, m := range group {
		w.act(m)
		if w.skips != nil && w.skips(w.ops, m) {
			end, starts[i], skips = forever, forever, m
			continue
		}
		n := bytes
		if w.size != nil {
			n += w.size(w.ops, m)
		}
		if n != bytes || w.broken != nil && w.broken(w.ops) {
			end = forever
		}
		m.spend(8 * time.Microsecond)
		if m.host < forever {
			if with[i] = -1; op < wire.Send {
				m.entered[place]++
				measured[i] = !w.graph && m.measures(place)
			} else {
				with[i] = m.exchange(group[1-i], op)
				measured[i] = !w.graph
			}
			m.bytes[place] += n
		}
		called[i] = m.host
		m.note(entry{kind: wire.EventCollective, id: uint32(n)*31 + uint32(op), thread: 1, place: place,
			number: m.entered[place], bytes: m.bytes[place], op: op, peers: m.peers})
		m.launch(900+int(op), 1, 0)
		starts[i] = max(m.host, m.gpu, m.stream)
		end = max(end, starts[i])
	}
	if first := slices.Min(starts); end >= forever && w.vain == 0 && first < forever {
		w.vain = first
	}
	end = min(forever, end+int64(w.step)/int64(40*max(1, w.buckets+w.layers)))
	for i, m := range group {
		if m == skips {
			continue
		}
		if m.host < forever || starts[i] < forever {
			m.stream = end
			if m.r != nil && measured[i] {
				m.marks = append(m.marks, mark{place: place, number: m.entered[place], with: with[i], called: called[i],
					begin: starts[i], end: end})
			}
		}
		if w.layers > 0 && place > 0 || op >= wire.Send {
			m.gpu = max(m.gpu, m.stream)
		}
	}
}

func (w *world) act(m *actor) {
	if w.before != nil && m.host < forever {
		w.before(w.ops, m)
	}
}

// train is a step of all.
func (w *world) train() {
	w.ops = 0
	part := time.Duration(float64(w.step) * 0.9 / float64(w.launches))
	for _, m := range w.members { // a batch
		m.note(entry{kind: wire.EventCopying, id: 1000})
		m.spend(time.Millisecond)
		m.note(entry{kind: wire.EventCopied, id: 1000})
	}
	for i := range w.launches {
		for _, m := range w.members {
			w.act(m)
			d := part
			if w.endless != nil && w.endless(w.ops, m) {
				d = forever
			}
			m.launch(100+i%10+i/10*16, uint16(i*2/w.launches), d)
		}
		w.ops++
		if w.layers > 0 && i%(w.launches/w.layers) == 0 {
			for j := 0; j+1 < len(w.members); j += 2 {
				w.collect(w.members[j:j+2], 1, 4096, wire.AllReduce)
			}
			w.ops++
		}
		if w.pipeline && i%10 == 5 {
			for j := range len(w.members) - 1 {
				w.collect(w.members[j:j+2], 2, 1<<16, wire.Send+wire.Collective(i/10%2))
			}
			w.ops++
		}
		// The last bucket follows the last kernel: ranks meet in each step.
		if w.buckets > 0 && i >= w.launches/2 && (w.launches-1-i)%max(1, w.launches/2/w.buckets) == 0 {
			w.collect(w.members, 0, 1<<20+uint64(i)<<10, wire.AllReduce)
			w.ops++
		}
	}
	for _, m := range w.members {
		if m.r != nil && m.host < forever && w.buckets > 0 && !w.graph {
			m.marks = append(m.marks, mark{number: m.entered[0], with: -1, waits: true, called: m.host, begin: m.gpu, end: m.gpu})
		}
		m.gpu = max(m.gpu, m.stream)
		for i := range 5 {
			m.launch(300+i, 0, 50*time.Microsecond)
		}
		if w.ahead == 0 {
			m.waits()
		}
		m.spend(w.step / 50)
	}
	w.pass(forever)
	w.rate()
}

// rate is how many collectives the hook measures: some 200 a second.
func (w *world) rate() {
	for _, m := range w.members {
		second := float64(w.buckets+w.layers) / w.step.Seconds()
		for m.every = 1; second/float64(m.every) > 200; m.every *= 2 {
		}
	}
}

// pass lets the time pass until the first thread that gets on, and at most until then.
func (w *world) pass(until int64) {
	for _, m := range w.members {
		if !m.ended {
			until = min(until, m.host)
		}
	}
	if until == forever {
		return
	}
	for w.h.at+w.tick() <= until {
		w.h.at += w.tick()
		for _, m := range w.members {
			m.show()
		}
		if w.h.at-w.looked >= 1e9 {
			w.looked = w.h.at
			w.look()
		}
	}
}

// wait lets so much time pass although threads stand.
func (w *world) wait(d time.Duration) {
	stood := w.members
	w.members = nil
	for until := w.h.at + int64(d); w.h.at < until; {
		w.h.at += w.tick()
		for _, m := range stood {
			m.show()
		}
		if w.h.at-w.looked >= 1e9 {
			w.looked = w.h.at
			w.members = stood
			w.look()
			w.members = nil
		}
	}
	w.members = stood
}

// tick is how often the traces are read.
func (w *world) tick() int64 {
	if w.step > 2*time.Second {
		return 500e6
	}
	return 100e6
}

func (w *world) look() {
	for _, m := range w.members {
		m.proc()
	}
	_, w.hangs = w.h.Observer.Look(func(int) string { return "job" })
	for _, h := range w.hangs {
		if w.alarm != nil {
			w.alarm(h)
		}
	}
	w.late = w.h.Observer.Stragglers()
	for _, s := range w.late {
		if w.told != nil {
			w.told(s)
		}
	}
}

// show writes what has happened by now into the trace, and shows it.
func (m *actor) show() {
	r := m.r
	if r == nil || m.ended {
		return
	}
	now := m.w.h.at
	n := 0
	for ; n < len(m.events) && m.events[n].at <= now; n++ {
		m.write(&m.events[n])
		m.called = m.events[n].at
	}
	m.events = append(m.events[:0], m.events[n:]...)
	m.marks = slices.DeleteFunc(m.marks, func(k mark) bool { return k.with < 0 && m.reaches(k) || k.end <= now })
	m.stands()
	if state := m.doing().kind; state != 'T' && state != 't' {
		if m.busy() {
			r.note(now, wire.EventBusy, 100_000)
		}
		r.put64(88, uint64(now))
		r.put64(96, uint64(now))
	}
	m.observe(false)
}

// reaches notes how far the GPU has come with a measured collective, and reports whether it is done.
func (m *actor) reaches(k mark) bool {
	r, now, place := m.r, m.w.h.at, 128+k.place*128
	if k.waits {
		if k.begin <= now {
			r.put32(place+120, uint32(k.number))
		}
		return k.begin <= now
	}
	if k.begin <= now {
		r.put64(place+72, max(k.number, r.get64(place+72)))
	}
	if k.end <= now {
		r.note(k.end, wire.EventCollected, uint32((k.end-k.begin)/1000))
		what := 128 + wire.Communicators*128 + int((r.head-1)%wire.EventsKept)*16 + 12
		r.put32(what, r.get32(what)|uint32(k.place)<<16)
		r.put64(place+32, max(k.number, r.get64(place+32)))
		r.put64(place+48, r.get64(place+48)+1)
		r.put64(place+56, r.get64(place+56)+uint64(k.end-k.begin))
	}
	return k.end <= now
}

// stands notes in which calls the GPU is, and to which it has not come.
func (m *actor) stands() {
	var unbegun [3]uint64
	var unreached uint32
	var inside, before uint32
	for _, k := range m.marks {
		now := m.w.h.at
		switch bit := uint32(1) << max(0, k.with); {
		case k.called > now:
		case k.waits:
			if unreached == 0 {
				unreached = uint32(k.number)
			}
		case k.with < 0 && k.begin > now && (unbegun[k.place] == 0 || k.number < unbegun[k.place]):
			unbegun[k.place] = k.number
		case k.with >= 0 && k.begin > now:
			before |= bit
		case k.with >= 0:
			inside |= bit
		}
	}
	for place, n := range unbegun {
		m.r.put64(128+place*128+80, n)
	}
	m.r.put32(128+124, unreached)
	m.r.put32(128+2*128+112, inside)
	m.r.put32(128+2*128+116, before)
}

func (m *actor) observe(ends bool) {
	m.w.h.Observer.Observe(broker.Traced{Session: uint64(m.index) + 1, PID: m.r.pid, Tenant: "default",
		GPUs: []string{fmt.Sprint("GPU-", m.index)}, Trace: wire.TraceIn(m.r.trace), Ends: ends})
}

func (m *actor) write(e *entry) {
	r := m.r
	thread := e.thread
	gpu := uint32(0)
	if e.kind == wire.EventCollective {
		gpu = uint32(e.place)
		at := 128 + e.place*128
		id, rank, ranks := m.w.epoch<<32|77, m.index, m.w.ranks
		switch e.place {
		case 1:
			id, rank, ranks = m.w.epoch<<32|uint64(100+m.index/2), m.index%2, 2
		case 2:
			id = m.w.epoch<<32 | 99
		}
		for i, v := range []uint64{id, uint64(rank) | uint64(ranks)<<32, e.number, uint64(e.at)} {
			r.put64(at+8*i, v)
		}
		for i, p := range e.peers {
			if e.place == 2 && p.There {
				r.put32(at+88+8*i, p.Rank+1)
				r.put32(at+92+8*i, uint32(p.Sent)|uint32(p.Received)<<16)
			}
		}
		r.put64(at+40, e.bytes)
		r.put32(at+64, uint32(e.op))
	}
	n := r.head
	r.note(e.at, e.kind, e.id)
	place := 128 + wire.Communicators*128 + int(n%wire.EventsKept)*16
	r.put32(place+12, uint32(e.kind)|uint32(n/wire.EventsKept&0xff)<<8|gpu<<16|uint32(thread)<<20)
}

// doing returns what the process does now.
func (m *actor) doing() act {
	for len(m.acts) > 0 && m.acts[0].to <= m.w.h.at {
		m.acts = m.acts[1:]
	}
	if len(m.acts) > 0 && m.acts[0].from <= m.w.h.at {
		return m.acts[0]
	}
	if m.w.spins && m.busy() {
		return act{kind: 'R'}
	}
	return act{kind: 'S'}
}

// proc writes what procfs shows of the process.
func (m *actor) proc() {
	if m.r == nil || m.ended || m.w.h.at-m.called < 2e9 {
		return // nobody looks
	}
	pid := m.r.pid
	dir := filepath.Join(m.w.h.Observer.Procfs, fmt.Sprint(pid))
	task := filepath.Join(dir, "task", fmt.Sprint(pid))
	child := ""
	switch kind := m.doing().kind; kind {
	case 'c', 'R':
		m.r.proc('R', 95)
	case 'w':
		m.moved += 50 << 20
		m.r.proc("SD"[m.w.IntN(2)], 4)
	case 'k', 'K', 'B': // its child computes, sleeps, is blocked
		child = fmt.Sprint(pid + 500)
		m.r.proc('S', 1)
		o := *m.r
		o.pid += 500
		o.ticks = map[byte]int{'k': int(m.w.h.at / 1e7)}[kind]
		o.proc(map[byte]byte{'k': 'R', 'K': 'S', 'B': 'D'}[kind], 0)
	case 'T', 't', 'D':
		m.r.proc(kind, 0)
	default:
		m.r.proc('S', m.w.IntN(3))
	}
	for file, text := range map[string]string{filepath.Join(dir, "io"): fmt.Sprintf("rchar: 0\nwchar: %d\n", m.moved),
		filepath.Join(task, "children"): child} {
		if m.files[file] == text {
			continue
		}
		m.files[file] = text
		fixture.Rewrite(m.w.h.t, file, text)
	}
}

// dies is the end of the process.
func (m *actor) dies() {
	m.host, m.gpu, m.stream = forever, forever, forever
	if m.r != nil {
		m.observe(true)
		_ = os.RemoveAll(filepath.Join(m.w.h.Observer.Procfs, fmt.Sprint(m.r.pid)))
	}
	m.ended = true
}

// finish lets the ranks end one after the other when they have done their work.
func (w *world) finish() {
	for range w.members {
		next := slices.MinFunc(w.members, func(a, b *actor) int {
			return cmp.Compare(a.host, b.host)
		})
		w.pass(forever)
		w.wait(time.Second)
		next.dies()
	}
	w.wait(time.Minute)
}

// A fault makes a job hang.
type fault struct {
	name   string
	reason string // expected, with the culprit unless it is unknown
	inject func(w *world, m *actor, op int)
	late   int // 1: in the second half of the step, among the collectives
}

// once is something that a actor does before an operation.
func once(m *actor, op int, do func()) func(int, *actor) {
	done := false
	return func(now int, who *actor) {
		if !done && who == m && now >= op {
			done = true
			do()
		}
	}
}

// stands is a fault in which the thread stands and procfs shows this.
func stands(kind byte) func(w *world, m *actor, op int) {
	return func(w *world, m *actor, op int) { w.before = once(m, op, func() { m.does(kind, 0) }) }
}

// endless is a kernel without an end.
func endless(w *world, m *actor, op int) {
	w.endless = func(now int, who *actor) bool { return who == m && now >= op }
}

var faults = []fault{
	{"loader asleep", "absent", stands('S'), 0},
	{"loader's child asleep", "absent", stands('K'), 0},
	{"loader's child blocked", "absent", stands('B'), 0},
	{"stopped", "stopped", stands('T'), 0},
	{"killed", "ended", func(w *world, m *actor, op int) { w.before = once(m, op, m.dies) }, 0},
	{"skipped collective", "absent unlike", func(w *world, m *actor, op int) {
		done := false
		w.skips = func(now int, who *actor) bool {
			skip := !done && who == m && now >= op
			done = done || skip
			return skip
		}
	}, 0},
	{"endless kernel", "kernel", endless, 0},
	{"endless kernel, late", "kernel", endless, 1},
	{"another size", "unlike", func(w *world, m *actor, op int) {
		w.size = func(now int, who *actor) uint64 {
			if who == m && now >= op && m.host < forever {
				return 64
			}
			return 0
		}
	}, 0},
	{"another size once", "unlike", func(w *world, m *actor, op int) {
		done := false
		w.size = func(now int, who *actor) uint64 {
			if done || who != m || now < op || m.host >= forever {
				return 0
			}
			done = true
			return 64
		}
	}, 0},
	{"NCCL", "unknown elsewhere", func(w *world, _ *actor, op int) {
		w.broken = func(now int) bool { return now >= op }
	}, 0},
	{"crossed communicators", "deadlock", func(w *world, m *actor, op int) { w.before = once(m, op, m.crosses) }, 0},
}

// crosses calls a collective of its pair of which the neighbour does not know, and waits for it.
func (m *actor) crosses() {
	if n := m.w.members[m.index^1]; m.entered[1] == 0 { // it has joined all the same
		n.r.put64(256, m.w.epoch<<32|uint64(100+n.index/2))
		n.r.put64(264, uint64(n.index%2)|2<<32)
	}
	m.entered[1]++
	m.note(entry{kind: wire.EventCollective, id: 1, thread: 1, place: 1, number: m.entered[1], op: wire.AllReduce})
	m.launch(950, 1, 0)
	if !m.w.graph {
		m.marks = append(m.marks, mark{place: 1, number: m.entered[1], with: -1, called: m.host,
			begin: max(m.host, m.gpu, m.stream), end: forever})
	}
	m.gpu, m.stream = forever, forever
	m.waits()
}

// An outcome says how a hang was judged.
type outcome struct {
	right, wrong bool
	after        time.Duration
	told         string
}

// hangs lets a job train, injects a fault, and watches what is said of it.
func (w *world) judged(f fault) (o outcome) {
	if w.trains(w.early); w.early == 0 {
		w.goesOn(max(5*time.Second, 50*w.step))
	}
	if len(w.hangs) > 0 {
		return outcome{wrong: true, told: fmt.Sprintf("before: %+v", w.hangs)}
	}
	m := w.members[w.IntN(w.here)]
	f.inject(w, m, w.IntN(w.launches/2)+f.late*w.launches/2)
	began := int64(0)
	for range 60 {
		w.train()
		if stands := func(m *actor) bool { return m.host == forever }; began == 0 && slices.ContainsFunc(w.members, stands) {
			began = max(w.h.at, w.vain)
		}
		if !slices.ContainsFunc(w.members, func(m *actor) bool { return m.host < forever && m.r != nil }) {
			break
		}
	}
	limit := max(20*time.Second, 3*w.step)
	if w.ranks == 1 {
		limit = 35 * time.Second // one process may run long kernels
	}
	if f.name == "NCCL" && w.ranks > w.here {
		limit = 11 * time.Minute // a rank elsewhere may save
	}
	if w.early > 0 {
		limit = max(limit, settleFor+15*time.Second)
	}
	for time.Duration(w.h.at-began) < limit && !o.right {
		w.wait(time.Second)
		for _, h := range w.hangs {
			o.told = fmt.Sprintf("rank %d %s", h.Rank, h.Reason)
			blames := h.Reason != "unknown" && h.Reason != "elsewhere"
			expected := strings.Contains(f.reason, h.Reason)
			who := h.PID == m.r.pid || h.PID == 0 && m.ended || h.Reason == "deadlock" && h.PID/2 == m.r.pid/2
			switch nobody := strings.Contains(f.reason, "unknown"); {
			case !nobody && blames && who, nobody && expected:
				o.right = true
			case blames:
				o.wrong = true
			}
		}
		o.after = time.Duration(w.h.at - began)
	}
	return o
}

// TestWorldSample is a small part of the world.
func TestWorldSample(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	for i, f := range append(slices.Clone(faults[:7]), faults[len(faults)-1]) {
		w := newWorld(t, programs[0], uint64(i))
		if o := w.judged(f); !o.right || o.wrong {
			t.Errorf("%s: %+v; want %s", f.name, o, f.reason)
		}
	}
}

func (r *rank) get64(at int) uint64 { return binary.NativeEndian.Uint64(r.trace[at:]) }
func (r *rank) get32(at int) uint32 { return binary.NativeEndian.Uint32(r.trace[at:]) }
