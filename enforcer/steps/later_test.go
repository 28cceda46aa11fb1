package steps

import (
	"fmt"

	"gpusteward/internal/wire"
)

// later are programs that were written when the finder was done, after what users
// run, and judged as they were.
var later = []program{
	{"mixture of experts", 250, func(w *world, n int) {
		for range n {
			w.step(func() {
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
			})
		}
	}},
	{"graph network, sampled neighbours", 400, func(w *world, n int) {
		for range n {
			w.step(func() {
				w.spend(int64(4+3*w.Float64()) * ms)
				w.copy(int64(1<<18 + w.IntN(1<<18)))
				for range 3 {
					for range 2 + w.IntN(3) {
						small.op(w, "gather", 15*us)
						small.op(w, "segment sum", 25*us)
					}
					small.op(w, "gemm", 30*us)
				}
				w.on(7, func() {
					for range 3 {
						small.op(w, "gemm dw", 30*us)
						for range 2 + w.IntN(3) {
							small.op(w, "scatter", 25*us)
						}
					}
				})
				quick.adam(w)
				w.item()
			})
		}
	}},
	{"diffusion, moving average, never waits", 300, func(w *world, n int) {
		unet := model{"unet ", 8, 70 * us, 12 * us}
		for i := range n {
			w.step(func() {
				w.copy(1 << 20)
				for _, k := range []string{"randn", "randint", "gather", "gather", "mul", "add"} {
					unet.op(w, k, 5*us)
				}
				unet.train(w)
				for range 24 {
					unet.op(w, "lerp", 10*us)
				}
			})
			if i%100 == 99 {
				for range 50 {
					unet.forward(w)
					unet.op(w, "denoise", 10*us)
				}
				w.copying(1 << 22)
			}
		}
	}},
	{"validation each quarter of an epoch, progress bar", 500, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.spend(600 * us)
				w.copy(1 << 18)
				small.train(w)
				if i%20 == 19 {
					w.item()
				}
			})
			if i%60 == 59 {
				evaluate(w, small, 12+w.IntN(2))
			}
			if i%240 == 239 {
				w.now += 3e9
				for range 80 {
					w.copying(1 << 21)
				}
			}
		}
	}},
	{"compiled, graphs, compiled again twice", 500, func(w *world, n int) {
		for i := range n {
			w.step(func() {
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
			})
		}
	}},
	{"launches by a pool of threads", 400, func(w *world, n int) {
		for range n {
			w.step(func() {
				w.spend(400 * us)
				w.copy(1 << 18)
				for k := range 18 {
					w.on(uint16(10+w.IntN(4)), func() { w.launch("fusion "+string(rune('a'+k)), 300*us) })
				}
				w.wait(wire.WaitEvent)
			})
		}
	}},
	{"new threads each step, two replicas", 300, func(w *world, n int) {
		for i := range n {
			w.step(func() {
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
			})
		}
	}},
	{"executor with threads in any order", 400, func(w *world, n int) {
		for range n {
			w.step(func() {
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
			})
		}
	}},
	{"adapters, accumulation of 8, recomputation, any length", 120, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				for b := range 8 {
					length := 4 + w.IntN(9)
					m := small
					m.cost = m.cost * int64(length) / 8
					w.spend(500 * us)
					w.copy(int64(length) * 4096)
					m.forward(w)
					w.on(7, func() {
						for range m.layers {
							for k := range 8 {
								m.op(w, "again "+string(rune('a'+k)), m.cost)
							}
							for k := range 11 {
								m.op(w, "backward "+string(rune('a'+k)), m.cost)
							}
							if b > 0 {
								m.op(w, "accumulate", us)
							}
						}
					})
				}
				small.op(w, "clip", 5*us)
				quick.adam(w)
				if i%10 == 9 {
					w.item()
				}
			})
		}
	}},
	{"actor each second step", 500, func(w *world, n int) {
		critic, actor := model{"critic ", 1, 20 * us, 12 * us}, model{"actor ", 1, 20 * us, 12 * us}
		for i := range n {
			w.step(func() {
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
			})
		}
	}},
	{"pipeline of 8 batches, one forward one backward", 150, func(w *world, n int) {
		m := model{"stage ", 2, 60 * us, 10 * us}
		for range n {
			w.step(func() {
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
			})
		}
	}},
	{"tables, steps of 300 us", 20000, func(w *world, n int) {
		for i := range n {
			w.step(func() {
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
			})
		}
	}},
	{"other kernels for the first 20 steps", 400, func(w *world, n int) {
		for i := range n {
			m := small
			if i < 20 {
				m.name = fmt.Sprint("trial ", i%5, " ")
			}
			w.step(func() {
				w.copy(1 << 18)
				m.train(w)
				w.item()
			})
		}
	}},
	{"longer sequences each 60 steps", 480, func(w *world, n int) {
		for i := range n {
			m := small
			m.name = fmt.Sprint("length ", i/60, " ")
			m.cost = small.cost * int64(4+i/60) / 4
			w.step(func() {
				w.copy(1 << 18)
				m.train(w)
				w.item()
			})
		}
	}},
	{"sparse updates, loss now and then", 350, func(w *world, n int) {
		for range n {
			w.step(func() {
				w.copy(1 << 17)
				small.forward(w)
				small.backward(w, false)
				for range 20 + w.IntN(6) { // tables that were touched
					small.op(w, "index add", 6*us)
				}
				small.adam(w)
				if w.IntN(12) == 0 {
					w.item()
				}
			})
		}
	}},

	{"continuous batching", 0, func(w *world, n int) {
		running := 4
		for range 4000 {
			for w.Float64() < 0.06 { // a request comes
				for range 1 + w.IntN(4) {
					small.forward(w)
				}
				running++
			}
			w.spend(900 * us) // scheduler
			for range 3 {
				w.copy(int64(running) * 64)
			}
			w.graph(fmt.Sprint("decode ", (running+7)/8), int64(6+running/8)*ms)
			for range 2 + w.IntN(3) {
				w.launch("sample", 20*us)
			}
			w.copying(int64(running) * 8)
			for range running { // some are done
				if w.Float64() < 0.008 {
					running--
				}
			}
			if running == 0 {
				w.now += int64(w.ExpFloat64() * 100e6)
				running = 1
			}
		}
	}},
	{"three models, many clients", 0, func(w *world, n int) {
		models := []model{{"bert ", 4, 20 * us, 9 * us}, {"resnet ", 6, 30 * us, 9 * us}, {"rank ", 1, 10 * us, 9 * us}}
		for range 1500 {
			m := models[[]int{0, 0, 0, 1, 2, 2}[w.IntN(6)]]
			w.thread = uint16(w.IntN(3))
			w.spend(int64(w.ExpFloat64() * 2e6))
			w.copy(int64(1+w.IntN(16)) * 4096)
			m.forward(w)
			w.copying(int64(1+w.IntN(16)) * 64)
		}
	}},
	{"pictures on request", 0, func(w *world, n int) {
		unet := model{"unet ", 8, 90 * us, 10 * us}
		for range 40 {
			w.now += int64(w.ExpFloat64() * 2e9)
			quick.forward(w)
			for range []int{20, 25, 28, 30, 50}[w.IntN(5)] {
				unet.forward(w)
				unet.op(w, "denoise", 10*us)
			}
			small.forward(w)
			w.copying(1 << 20)
		}
	}},
	{"tokens that are guessed and verified", 0, func(w *world, n int) {
		for range 50 {
			w.now += int64(w.ExpFloat64() * 200e6)
			small.forward(w)
			for range 5 + w.IntN(80) {
				for range 3 + w.IntN(5) {
					w.graph("draft", 400*us)
				}
				w.graph("verify", 5*ms)
				w.item()
			}
		}
	}},
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
}

func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}
