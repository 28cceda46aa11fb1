package steps

import (
	"fmt"

	"gpusteward/internal/wire"
)

// ops launches n kernels, of so many different ones.
func (w *world) ops(name string, n, kinds int, cost int64) {
	for k := range n {
		w.spend(7 * us)
		w.launch(fmt.Sprint(name, " ", k%kinds), cost)
	}
}

// bounded is a step of a program whose launches wait for room in the queue.
func (w *world) bounded(f func()) {
	w.step(func() { w.room(); f() })
}

// piece is one of several batches of a step, whose gradients are added up.
func (m model) piece(w *world, bytes int64, adds bool) {
	w.copy(bytes)
	m.forward(w)
	m.backward(w, adds)
}

// fresh are programs of the kinds at which the finder was known to fail, written
// before it was changed, and looked at while it was.
var fresh = []program{
	{"evaluation of 250 batches after each 25 steps", 300, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.spend(800 * us)
				w.copy(1 << 17)
				small.train(w)
				w.item()
			})
			if i%25 == 24 {
				evaluate(w, small, 250)
			}
		}
	}},
	{"evaluation of 1500 batches after each 120 steps", 600, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.copy(1 << 17)
				small.train(w)
				w.item()
			})
			if i%120 == 119 {
				evaluate(w, small, 1500)
			}
		}
	}},
	{"JAX, evaluation of 200 batches after each 60 steps", 400, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.spend(300 * us)
				w.copy(1 << 18)
				w.ops("fusion", 16, 16, 200*us)
				w.copying(64)
			})
			if i%60 == 59 {
				for range 200 {
					w.copy(1 << 18)
					w.ops("eval fusion", 6, 6, 200*us)
					w.copying(64)
				}
			}
		}
	}},
	{"evaluation of 20 batches after each 40 steps", 480, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.copy(1 << 17)
				small.train(w)
			})
			if i%40 == 39 {
				evaluate(w, small, 20)
			}
		}
	}},
	{"accumulation of 16, one kernel updates", 80, func(w *world, n int) {
		for range n {
			w.step(func() {
				for b := range 16 {
					w.spend(400 * us)
					quick.piece(w, 1<<15, b > 0)
				}
				w.launch("norm", 5*us)
				w.launch("fused sgd", 20*us)
				w.item()
			})
		}
	}},
	{"accumulation of 32, four kernels update, never waits", 80, func(w *world, n int) {
		for range n {
			w.step(func() {
				for b := range 32 {
					quick.piece(w, 1<<15, b > 0)
				}
				w.ops("fused adam", 4, 1, 20*us)
			})
		}
	}},
	{"a recurrent network, 20 to 70 steps of time", 400, func(w *world, n int) {
		for range n {
			length := 20 + w.IntN(51)
			w.step(func() {
				w.spend(ms)
				w.copy(int64(length) << 12)
				w.ops("embed", 2, 2, 8*us)
				w.ops("cell", 4*length, 4, 8*us)
				w.on(7, func() {
					w.ops("loss", 3, 3, 8*us)
					w.ops("cell backward", 6*length, 6, 8*us)
				})
				quick.adam(w)
				w.item()
			})
		}
	}},
	{"trees of any size, loader", 350, func(w *world, n int) {
		for range n {
			nodes := 10 + w.IntN(30)
			w.step(func() {
				w.spend(int64(3+4*w.Float64()) * ms)
				for range 3 {
					w.copy(int64(nodes) << 10)
				}
				for range nodes {
					w.ops("node", 3+w.IntN(3), 5, 10*us)
				}
				w.on(7, func() { w.ops("node backward", 7*nodes, 7, 10*us) })
				w.ops("adam", 20, 5, 5*us)
				if w.IntN(4) == 0 {
					w.item()
				}
			})
		}
	}},
	{"accumulation of 16, sequences of any length", 100, func(w *world, n int) {
		for range n {
			w.step(func() {
				for b := range 16 {
					length := 8 + w.IntN(20)
					w.copy(int64(length) << 10)
					w.ops("forward", 3*length, 3, 10*us)
					w.on(7, func() {
						w.ops("backward", 5*length, 5, 10*us)
						if b > 0 {
							w.ops("accumulate", 6, 1, 3*us)
						}
					})
				}
				w.ops("adam", 10, 5, 20*us)
				w.item()
			})
		}
	}},
	{"64 moves of an agent, then 16 updates", 960, func(w *world, n int) {
		for i := range n {
			if i%16 == 0 {
				for range 64 {
					w.spend(300 * us)
					w.copy(1 << 10)
					quick.forward(w)
					w.copying(64)
				}
			}
			w.step(func() {
				w.copy(1 << 14)
				quick.train(w)
				w.ops("clip", 4, 4, 5*us)
			})
		}
	}},
	{"two networks in turn, never waits, GPU-bound", 300, func(w *world, n int) {
		d, g := model{"D ", 3, 150 * us, 6 * us}, model{"G ", 3, 150 * us, 6 * us}
		for range n {
			w.bounded(func() {
				w.copy(1 << 18)
				d.forward(w)
				g.forward(w)
				d.forward(w)
				d.backward(w, true)
				d.adam(w)
				g.forward(w)
				d.forward(w)
				g.backward(w, false)
				g.adam(w)
			})
		}
	}},
	{"ranks that agree each 20th step, buckets in any order", 300, func(w *world, n int) {
		for i := range n {
			if i%20 == 0 {
				w.spend(3 * ms)
				w.copying(64)
			}
			w.step(func() {
				small.forward(w)
				w.on(7, func() {
					for b := range 4 {
						w.ops("backward", 12, 12, 60*us)
						if w.IntN(6) == 0 {
							w.on(9, func() { w.collective(fmt.Sprint("bucket ", b), 200*us) })
						} else {
							w.collective(fmt.Sprint("bucket ", b), 200*us)
						}
					}
				})
				small.adam(w)
				w.item()
			})
		}
	}},

	{"a chat server whose first answers have 64 tokens each", 0, func(w *world, n int) {
		for i := range 80 {
			w.now += int64(w.ExpFloat64() * 200e6)
			large.forward(w)
			tokens := 64
			if i >= 12 {
				tokens = 10 + w.IntN(400)
			}
			for range tokens {
				w.copy(512)
				w.graph("decode", 9*ms)
				w.launch("sample", 20*us)
				w.item()
			}
		}
	}},
	{"answers by an engine whose threads take turns", 0, func(w *world, n int) {
		for range 60 {
			w.now += int64(w.ExpFloat64() * 200e6)
			large.forward(w)
			for range 5 + w.IntN(200) {
				w.on(3, func() {
					w.copy(256)
					w.launch("embed", 9*us)
				})
				w.graph("decode", 7*ms)
				w.on(4, func() {
					w.launch("sample", 9*us)
					w.copying(8)
				})
			}
		}
	}},
	{"answers of 40 to 2000 tokens, kernels by hand", 0, func(w *world, n int) {
		for range 14 {
			w.now += int64(w.ExpFloat64() * 500e6)
			small.forward(w)
			for range 40 + w.IntN(1960) {
				decode(w)
			}
		}
	}},
}

// aside are such programs that were kept back until the finder was changed. They
// showed two faults, which were mended then.
var aside = []program{
	{"evaluation by graphs, three times the training", 600, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.copy(1 << 16)
				w.ops("forward", 30, 10, 60*us)
				w.on(7, func() { w.ops("backward", 60, 14, 60*us) })
				w.ops("adam", 8, 8, 30*us)
				if i%10 == 9 {
					w.item()
				}
			})
			if i%40 == 39 {
				for range 200 {
					w.copy(1 << 16)
					w.graph("evaluate", 5*ms)
				}
				w.item()
			}
		}
	}},
	{"accumulation of 24, fused update, never waits", 60, func(w *world, n int) {
		m := model{"tiny ", 3, 30 * us, 9 * us}
		for range n {
			w.step(func() {
				for b := range 24 {
					m.piece(w, 1<<14, b > 0)
				}
				w.ops("update", 4, 2, 30*us)
			})
		}
	}},
	{"speech of 1 to 4 s", 400, func(w *world, n int) {
		for range n {
			frames := 25 + w.IntN(76)
			w.step(func() {
				w.spend(2 * ms)
				w.copy(int64(frames) << 13)
				w.ops("filter", 6, 6, 40*us)
				for range frames {
					w.ops("joint", 3, 3, 15*us)
				}
				w.on(5, func() {
					for range frames {
						w.ops("joint backward", 5, 5, 15*us)
					}
					w.ops("filter backward", 9, 9, 40*us)
				})
				w.ops("lamb", 30, 6, 10*us)
				w.item()
			})
		}
	}},
	{"molecules, kernels by number of atoms, one thread", 400, func(w *world, n int) {
		for range n {
			atoms := 6 + w.IntN(14)
			w.step(func() {
				w.spend(int64(2+w.Float64()) * ms)
				w.copy(int64(atoms) << 9)
				w.ops("message", 9*atoms, 9, 20*us)
				w.ops("readout", 4, 4, 20*us)
				w.ops("message gradient", 14*atoms, 14, 20*us)
				w.ops("update", 12, 3, 8*us)
				w.copying(64)
			})
		}
	}},
	{"teacher and student, never waits, GPU-bound", 300, func(w *world, n int) {
		teacher, student := model{"teacher ", 5, 120 * us, 5 * us}, model{"student ", 2, 120 * us, 5 * us}
		for i := range n {
			w.bounded(func() {
				teacher.forward(w)
				w.room()
				student.forward(w)
				student.backward(w, false)
				w.room()
				student.adam(w)
				w.ops("average", 10, 2, 20*us)
				if i%50 == 49 {
					w.item()
				}
			})
		}
	}},
	{"critic five times, then generator", 200, func(w *world, n int) {
		c, g := model{"C ", 2, 30 * us, 10 * us}, model{"G ", 2, 30 * us, 10 * us}
		for range n {
			w.step(func() {
				for range 5 {
					w.copy(1 << 16)
					g.forward(w)
					c.forward(w)
					c.forward(w)
					c.backward(w, true)
					c.adam(w)
				}
				g.forward(w)
				c.forward(w)
				g.backward(w, false)
				g.adam(w)
				w.item()
			})
		}
	}},

	{"translations whose first 20 sentences are alike", 0, func(w *world, n int) {
		m := model{"encoder ", 3, 30 * us, 9 * us}
		for i := range 200 {
			w.now += int64(w.ExpFloat64() * 60e6)
			m.forward(w)
			words := 30
			if i >= 20 {
				words = 5 + w.IntN(60)
			}
			for range words {
				decode(w)
			}
			w.copying(4096)
		}
	}},
	{"a queue of documents, answers end to end", 0, func(w *world, n int) {
		for range 60 {
			large.forward(w)
			w.wait(wire.WaitStream)
			for range 20 + int(w.ExpFloat64()*150) {
				w.copy(256)
				w.graph("decode", 6*ms)
				w.launch("top k", 20*us)
				w.launch("sample", 20*us)
				w.copying(8)
			}
		}
	}},
}
