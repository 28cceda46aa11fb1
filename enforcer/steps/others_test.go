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

// others are programs that were written after the finder, in several rounds, and judged as they
// were or kept back while it was changed. Some showed a fault, which was mended then: a server may
// wait for a token without a copy, for example.
var others = []program{
	{"mixture of experts", 250, each(func(w *world, _ int) {
		w.copy(1 << 17)
		layer := func(way string) {
			for range 6 {
				for _, k := range []string{"norm", "gemm", "attention", "route", "scatter"} {
					small.op(w, way+k, 40*us)
				}
				for range 4 + w.IntN(5) { // experts that have tokens
					small.op(w, way+"expert up", 20*us)
					small.op(w, way+"expert down", 20*us)
				}
			}
		}
		layer("f ")
		w.on(7, func() { layer("b ") })
		small.adam(w)
		w.item()
	})},
	{"compiled, graphs, compiled again twice", 500, each(func(w *world, i int) {
		if i == 40 || i == 90 {
			w.spend(6000 * ms)
		}
		name := fmt.Sprint(truth(i >= 40) + truth(i >= 90))
		w.copy(1 << 16)
		w.graph("forward "+name, 4*ms)
		w.on(7, func() { w.graph("backward "+name, 7*ms) })
		w.graph("optimizer", ms)
		if i%10 == 9 {
			w.item()
		}
	})},
	{"new threads each step, two replicas", 300, each(func(w *world, i int) {
		w.copy(1 << 18)
		for r := range 2 {
			w.on(uint16(10+(2*i+r)%14), func() { small.forward(w) })
		}
		w.launch("gather", 50*us)
		for r := range 2 {
			w.on(uint16(7+r), func() {
				small.op(w, "fill", us)
				for k := range 40 {
					small.op(w, "replica backward "+string(rune('a'+k%13)), 40*us)
				}
			})
		}
		small.adam(w)
		w.item()
	})},
	{"executor with threads in any order", 400, each(func(w *world, _ int) {
		w.copy(1 << 19)
		order := w.Perm(12) // branches of a network
		for _, branch := range order {
			w.on(uint16(20+w.IntN(3)), func() {
				for k := range 5 {
					w.spend(6 * us)
					w.launch(fmt.Sprint("branch ", branch, k), 60*us)
				}
			})
		}
		for k := range 20 {
			w.spend(6 * us)
			w.launch(fmt.Sprint("apply ", k%4), 10*us)
		}
		w.copying(64)
	})},
	{"actor each second step", 500, each(func(w *world, i int) {
		critic, actor := model{"critic ", 1, 20 * us, 12 * us}, model{"actor ", 1, 20 * us, 12 * us}
		w.spend(800 * us) // the environment
		w.copy(1 << 12)
		actor.forward(w)
		w.copying(256)
		w.copy(1 << 16)
		critic.train(w)
		if i%2 == 1 {
			actor.train(w)
			for range 6 {
				actor.op(w, "polyak", 5*us)
			}
		}
	})},
	{"pipeline of 8 batches, one forward one backward", 150, each(func(w *world, _ int) {
		m := model{"stage ", 2, 60 * us, 10 * us}
		forward := func() {
			w.collective("recv forward", 100*us)
			m.forward(w)
			w.collective("send forward", 100*us)
		}
		backward := func(add bool) {
			w.collective("recv backward", 100*us)
			m.backward(w, add)
			w.collective("send backward", 100*us)
		}
		for range 3 {
			forward()
		}
		for b := range 5 {
			forward()
			backward(b > 0)
		}
		for range 3 {
			backward(true)
		}
		w.collective("all_reduce", 300*us)
		m.adam(w)
		w.item()
	})},
	{"tables, steps of 300 us", 20000, each(func(w *world, i int) {
		w.spend(60 * us)
		w.copy(1 << 12)
		for k := range 6 {
			w.spend(9 * us)
			w.launch("mlp "+string(rune('a'+k%3)), 6*us)
		}
		w.on(7, func() {
			for k := range 7 {
				w.spend(9 * us)
				w.launch("mlp backward "+string(rune('a'+k%4)), 6*us)
			}
		})
		w.spend(20 * us)
		w.launch("fused adam", 8*us)
		if i%100 == 99 {
			w.item()
		}
	})},
	{"longer sequences each 60 steps", 480, each(func(w *world, i int) {
		m := small
		m.name = fmt.Sprint("length ", i/60, " ")
		m.cost = small.cost * int64(4+i/60) / 4
		w.copy(1 << 18)
		m.train(w)
		w.item()
	})},

	{"tables of data", 0, func(w *world, n int) {
		for range 500 {
			w.spend(int64(w.ExpFloat64() * 40e6))
			for range 1 + w.IntN(6) {
				switch w.IntN(4) {
				case 0:
					w.copying(int64(1<<20 + w.IntN(1<<24)))
				case 1:
					for range 1 + w.IntN(9) {
						w.launch("radix sort", 300*us)
					}
				case 2:
					w.launch("hash build", 800*us)
					w.launch("hash probe", 900*us)
				default:
					w.launch("group by", 500*us)
				}
			}
			w.wait(wire.WaitStream)
		}
	}},
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
	{"accumulation of 16, one kernel updates", 80, each(func(w *world, _ int) {
		for b := range 16 {
			w.spend(400 * us)
			quick.piece(w, 1<<15, b > 0)
		}
		w.launch("norm", 5*us)
		w.launch("fused sgd", 20*us)
		w.item()
	})},
	{"a recurrent network, 20 to 70 steps of time", 400, each(func(w *world, _ int) {
		length := 20 + w.IntN(51)
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
	})},
	{"accumulation of 16, sequences of any length", 100, each(func(w *world, _ int) {
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
	})},
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
	{"answers by an engine whose threads take turns", 0, answers(60, 200e6, large, 5, 200, func(w *world) {
		w.on(3, func() {
			w.copy(256)
			w.launch("embed", 9*us)
		})
		w.graph("decode", 7*ms)
		w.on(4, func() {
			w.launch("sample", 9*us)
			w.copying(8)
		})
	})},
	{"answers of 40 to 2000 tokens, kernels by hand", 0, answers(14, 500e6, small, 40, 1960, decode)},
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
	{"adapters, recomputation, accumulation of 4, never waits", 150, each(func(w *world, i int) {
		for b := range 4 {
			w.copy(1 << 14)
			w.copy(1 << 14)
			small.forward(w)
			w.on(7, func() {
				for range small.layers {
					w.ops("again", 10, 10, 40*us)
					w.ops("layer backward", 13, 13, 40*us)
					if b > 0 {
						w.ops("accumulate", 2, 1, 2*us)
					}
				}
			})
		}
		w.ops("clip", 4, 2, 5*us)
		quick.adam(w)
		if i%10 == 9 {
			w.item()
		}
	})},

	{"an engine with prefills in chunks", 0, func(w *world, n int) {
		var left []int // tokens of each request
		prefill := 0   // tokens that wait
		for range 3000 {
			if w.Float64() < 0.03 {
				left = append(left, 16+int(w.ExpFloat64()*250))
				prefill += 100 + w.IntN(3000)
			}
			if len(left) == 0 {
				w.now += int64(w.ExpFloat64() * 300e6)
				continue
			}
			w.spend(700 * us)
			for range 4 {
				w.copy(int64(len(left)) * 8)
			}
			w.copy(int64(len(left)) * 256) // block tables
			if prefill > 0 {
				chunk := min(prefill, 512)
				prefill -= chunk
				for range 12 {
					w.ops("mixed", 9, 9, int64(20+chunk/8)*us)
				}
			} else {
				w.graph(fmt.Sprint("decode ", (len(left)+3)/4), int64(8+len(left)/8)*ms)
			}
			w.ops("sample", 5, 5, 9*us)
			w.copying(int64(len(left)) * 8)
			some := left[:0]
			for _, tokens := range left {
				if tokens > 1 {
					some = append(some, tokens-1)
				}
			}
			left = some
		}
	}},
	{"pictures in 18 to 60 steps, guidance", 0, func(w *world, n int) {
		unet := model{"unet ", 10, 110 * us, 9 * us}
		for range 40 {
			w.now += int64(w.ExpFloat64() * 3e9)
			small.forward(w) // text
			w.copy(64)
			for range 18 + w.IntN(43) {
				w.ops("scale", 2, 2, 9*us)
				unet.forward(w)
				w.ops("guide", 3, 3, 9*us)
				w.ops("denoise", 7, 7, 9*us)
			}
			large.forward(w)
			w.copying(3 << 20)
		}
	}},
	{"preferences, pairs of any length, frozen reference", 250, func(w *world, n int) {
		for range n {
			length := 6 + w.IntN(10)
			m := small
			m.cost = small.cost * int64(length) / 8
			reference := m
			reference.name = "reference "
			w.step(func() {
				w.spend(900 * us)
				for range 4 {
					w.copy(int64(length) * 2048)
				}
				for range 2 {
					m.forward(w)
				}
				for range 2 {
					reference.forward(w)
				}
				w.ops("margin", 9, 9, 5*us)
				m.backward(w, false)
				m.backward(w, true)
				m.adam(w)
				w.item()
			})
		}
	}},
	{"kernels by hand, one thread, loss each step, evaluation", 500, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.copy(1 << 19)
				for range 4 {
					w.ops("layer", 6, 6, 60*us)
				}
				for range 4 {
					w.ops("gradient", 11, 11, 60*us)
				}
				w.ops("update", 12, 2, 15*us)
				w.copying(64)
			})
			if i%100 == 99 {
				for range 10 {
					w.copy(1 << 19)
					for range 4 {
						w.ops("layer", 6, 6, 60*us)
					}
					w.copying(64)
				}
			}
		}
	}},

	{"four tokens guessed at a time", 0, func(w *world, n int) {
		for range 60 {
			w.now += int64(w.ExpFloat64() * 250e6)
			small.forward(w)
			large.forward(w)
			for range 4 + int(w.ExpFloat64()*70) {
				for range 4 {
					w.ops("draft", 14, 7, 9*us)
				}
				w.copy(64)
				for range 24 {
					w.ops("verify", 6, 6, 15*us)
				}
				w.ops("accept", 5, 5, 5*us)
				w.item()
			}
		}
	}},
	{"answers whose requests wait for each other, sizes of batches", 0, func(w *world, n int) {
		for range 50 {
			w.now += int64(w.ExpFloat64() * 150e6)
			batch := 1 + w.IntN(8)
			large.forward(w)
			tokens := 20 + w.IntN(500)
			for t := range tokens {
				w.spend(200 * us)
				w.copy(int64(batch) * 24)
				w.graph(fmt.Sprint("decode ", batch), int64(7+t/100)*ms)
				w.ops("top p", 6, 6, 9*us)
				w.wait(wire.WaitEvent)
			}
		}
	}},
}

func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}
