package steps

import (
	"hash/fnv"
	"math"
	"math/rand/v2"

	"gpusteward/internal/wire"
)

const (
	us = int64(1000) // ns
	ms = 1000 * us

	queueDepth = 1024 // launches that the driver accepts before it blocks
)

// A world is a simulated process: threads that call the driver one after the other, and a GPU that works off a queue.
// It notes the events that the hook would note, and the times of the script's own timer. It knows nothing of the
// finder.
type world struct {
	*rand.Rand
	now    int64 // of the host
	gpu    int64 // time at which the GPU has done all queued work
	ends   [queueDepth]int64
	queued int
	thread uint16
	until  int     // costs of the host until the next noise
	spent  int     // costs of the host in this step
	slow   float64 // factor of the host's costs
	events []wire.Event
	truth  []span
}

// A span is a step by the script's own timer.
type span struct{ begin, end int64 }

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	return &world{Rand: r, now: 5e12, gpu: 5e12, slow: 1}
}

func hashOf(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32()
}

func (w *world) note(kind wire.EventKind, id uint32) {
	w.events = append(w.events, wire.Event{At: w.now, ID: id, Kind: kind, Thread: w.thread})
}

// spend lets the host compute for about so long: a long tail, as of any OS.
func (w *world) spend(ns int64) {
	jitter := 0.08
	if ns >= ms {
		jitter = 0.02
	}
	cost := float64(ns) * w.slow * math.Exp(jitter*w.NormFloat64())
	if w.IntN(2000) == 0 {
		cost += float64(20*us) * w.ExpFloat64()
	}
	w.now += int64(cost)
	w.spent++
	if w.until--; w.until == 0 {
		w.noise()
	}
}

// queue gives the GPU work, and blocks while the queue is full.
func (w *world) queue(ns int64) {
	slot := w.queued % queueDepth
	w.now = max(w.now, w.ends[slot])
	w.gpu = max(w.gpu, w.now+4*us) + int64(float64(ns)*(1+0.01*w.NormFloat64()))
	w.ends[slot] = w.gpu
	w.queued++
}

// launch is the kernel of this name with its time on the GPU.
func (w *world) launch(name string, ns int64) {
	w.spend(5 * us)
	w.note(wire.EventLaunch, hashOf(name))
	w.queue(ns)
}

func (w *world) graph(name string, ns int64) {
	w.spend(12 * us)
	w.note(wire.EventGraph, hashOf(name))
	w.queue(ns)
}

func (w *world) collective(name string, ns int64) {
	w.spend(8 * us)
	w.note(wire.EventCollective, hashOf(name))
	w.launch("nccl "+name, ns)
}

// copy is an asynchronous copy.
func (w *world) copy(bytes int64) {
	w.spend(6 * us)
	w.note(wire.EventCopy, uint32((bytes+63)/64))
	w.queue(2*us + bytes/20)
}

// copying is a copy for which the thread waits.
func (w *world) copying(bytes int64) {
	w.spend(6 * us)
	w.note(wire.EventCopying, uint32((bytes+63)/64))
	w.queue(2*us + bytes/10)
	w.now = max(w.now, w.gpu)
	w.spend(3 * us)
	w.note(wire.EventCopied, uint32((bytes+63)/64))
}

func (w *world) wait(what wire.Waited) {
	w.spend(2 * us)
	w.note(wire.EventWait, uint32(what))
	w.now = max(w.now, w.gpu)
	w.spend(4 * us)
	w.note(wire.EventWaited, uint32(what))
}

// item is loss.item().
func (w *world) item() {
	w.copy(4)
	w.wait(wire.WaitStream)
}

// on lets another thread run f while this one is silent.
func (w *world) on(thread uint16, f func()) {
	before := w.thread
	w.thread = thread
	w.spend(15 * us)
	f()
	w.spend(15 * us)
	w.thread = before
}

// noise is what happens now and then in any Python program, anywhere in it.
func (w *world) noise() {
	if w.IntN(40) == 0 {
		w.spend(30 * us)
		w.note(wire.EventAlloc, uint32(1+w.IntN(9999)))
		w.spend(300 * us)
	}
	if w.IntN(60) == 0 {
		w.note(wire.EventFree, 0)
		w.spend(100 * us)
	}
	if w.IntN(20) == 0 { // collection of garbage
		w.spend(2*ms + int64(w.IntN(2000))*us)
	}
}

// step is one step by the script's own timer.
func (w *world) step(f func()) {
	w.until = 1 + w.IntN(max(1, w.spent))
	w.spent = 0
	began := w.now
	f()
	if w.until > 0 {
		w.until = 0
		w.noise()
	}
	w.truth = append(w.truth, span{began, w.now})
}

// A model is a network: its kernels have names.
type model struct {
	name   string
	layers int
	cost   int64 // of a kernel on the GPU, ns
	eager  int64 // host time beside each operation, ns
}

func (m model) op(w *world, name string, cost int64) {
	w.spend(m.eager)
	w.launch(name, cost)
}

func (m model) forward(w *world) {
	m.op(w, m.name+" embed", m.cost)
	for range m.layers {
		for _, k := range []string{"norm", "gemm qkv", "attention", "gemm out", "add", "norm", "gemm up", "gelu",
			"gemm down", "add"} {
			m.op(w, m.name+k, m.cost)
		}
	}
	m.op(w, m.name+" head", 2*m.cost)
	m.op(w, "log_softmax", m.cost)
	m.op(w, "nll", m.cost/2)
}

// backward runs on the thread of autograd; kernels add gradients to those that are there.
func (m model) backward(w *world, add bool) {
	w.on(7, func() {
		m.op(w, "fill", m.cost/4)
		m.op(w, "nll backward", m.cost/2)
		m.op(w, "log_softmax backward", m.cost)
		for range m.layers {
			for i, k := range []string{"add", "gemm down dx", "gemm down dw", "gelu backward", "gemm up dx", "gemm up dw",
				"norm backward", "gemm out dx", "gemm out dw", "attention backward", "gemm qkv dx", "gemm qkv dw",
				"norm backward"} {
				m.op(w, m.name+k, m.cost)
				if add && i%3 == 2 {
					m.op(w, "accumulate", m.cost/4)
				}
			}
		}
		m.op(w, m.name+" embed backward", m.cost)
	})
}

// adam is an optimizer over lists of tensors.
func (m model) adam(w *world) {
	for _, k := range []string{"lerp", "mul", "addcmul", "pow", "sqrt", "div", "add", "addcdiv"} {
		for range 1 + m.layers/6 {
			m.op(w, "multi_tensor "+k, m.cost)
		}
	}
}

func (m model) train(w *world) {
	m.forward(w)
	m.backward(w, false)
	m.adam(w)
}
