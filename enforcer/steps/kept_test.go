package steps

import "gpusteward/internal/wire"

// kept are programs that were written before the finder and kept back while it
// was made.
var kept = []program{
	{"CNN with an optimizer of single tensors", 250, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.spend(int64(3+2*w.Float64()) * ms)
				w.copy(3 << 20)
				for b := range 16 {
					for _, k := range []string{"conv", "bn", "relu", "conv", "bn", "add", "relu"} {
						w.spend(8 * us)
						w.launch("cnn "+k+string(rune('a'+b/4)), 70*us)
					}
				}
				w.launch("pool", 5*us)
				w.on(3, func() {
					for b := range 16 {
						for _, k := range []string{"relu b", "bn b", "conv dx", "conv dw", "relu b", "bn b", "conv dx", "conv dw"} {
							w.spend(8 * us)
							w.launch("cnn "+k+string(rune('a'+3-b/4)), 70*us)
						}
					}
				})
				for range 48 {
					for _, k := range []string{"mul", "add", "axpy"} {
						w.spend(4 * us)
						w.launch("single "+k, 4*us)
					}
				}
				if i%20 == 0 {
					w.item()
				}
			})
		}
	}},
	{"accumulation of 4 as graphs", 700, func(w *world, n int) {
		for range n {
			w.step(func() {
				for range 4 {
					w.copy(1 << 16)
					w.graph("micro", 3*ms)
				}
				w.graph("optimizer", ms)
			})
		}
	}},
	{"DDP, accumulation of 8 without synchronization", 120, func(w *world, n int) {
		for range n {
			w.step(func() {
				for i := range 8 {
					w.copy(1 << 16)
					quick.forward(w)
					quick.backward(w, i > 0)
				}
				for range 3 {
					w.collective("all_reduce", 500*us)
				}
				quick.adam(w)
			})
		}
	}},
	{"JAX with evaluation and logs", 500, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.spend(300 * us)
				w.copy(1 << 19)
				for k := range 14 {
					w.launch("fusion "+string(rune('a'+k)), 200*us)
				}
				if i%25 == 24 {
					w.copying(64)
				}
			})
			if i%100 == 99 {
				for range 20 {
					w.copy(1 << 19)
					for k := range 5 {
						w.launch("eval fusion "+string(rune('a'+k)), 200*us)
					}
					w.copying(64)
				}
			}
		}
	}},
	{"copies by another thread", 300, func(w *world, n int) {
		for range n {
			w.step(func() {
				small.forward(w)
				w.on(2, func() { w.copy(1 << 20); w.note(wire.EventWait, 1); w.spend(50 * us); w.note(wire.EventWaited, 1) })
				small.backward(w, false)
				if w.IntN(2) == 0 {
					w.on(3, func() { w.copy(1 << 10) })
				}
				small.adam(w)
			})
		}
	}},
	{"three losses, three networks", 150, func(w *world, n int) {
		a, b := model{"A ", 3, 30 * us, 10 * us}, model{"B ", 3, 30 * us, 10 * us}
		for i := range n {
			w.step(func() {
				for _, m := range []model{a, b, a} {
					w.copy(1 << 14)
					m.train(w)
					w.item()
				}
				if i%7 == 0 {
					for range 6 {
						w.launch("moving average", 3*us)
					}
				}
			})
		}
	}},
	{"two phases with a pause", 400, func(w *world, n int) {
		for i := range n {
			if i == 150 {
				w.now += 40e9
				evaluate(w, large, 20)
			}
			w.step(func() {
				if i < 150 {
					w.copy(1 << 16)
					small.train(w)
				} else {
					w.copy(1 << 12)
					large.train(w)
				}
				w.item()
			})
		}
	}},
	{"long evaluation each 50th step", 300, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.spend(ms)
				w.copy(1 << 16)
				small.train(w)
				w.item()
			})
			if i%50 == 49 {
				evaluate(w, small, 200)
			}
		}
	}},
	{"compilation first, then compiled steps", 1500, func(w *world, n int) {
		for k := range 20 {
			w.spend(int64(50+w.IntN(900)) * ms)
			for range 30 {
				w.copy(1 << 24)
				w.launch("tuned "+string(rune('a'+k)), 90*us)
			}
			w.wait(wire.WaitContext)
		}
		for range n {
			w.step(func() {
				w.copy(1 << 16)
				w.graph("forward", 3*ms)
				w.on(7, func() { w.graph("backward", 6*ms) })
				for range 4 {
					w.launch("foreach", 40*us)
				}
			})
		}
	}},
	{"a recurrent network over sequences of one length", 150, func(w *world, n int) {
		for range n {
			w.step(func() {
				w.copy(1 << 16)
				for range 64 {
					for _, k := range []string{"gemm", "sigmoid", "tanh", "mul"} {
						w.spend(7 * us)
						w.launch("cell "+k, 6*us)
					}
				}
				w.on(7, func() {
					for range 64 {
						for _, k := range []string{"mul", "tanh b", "sigmoid b", "gemm", "gemm t"} {
							w.spend(7 * us)
							w.launch("cell "+k, 6*us)
						}
					}
				})
				quick.adam(w)
				w.item()
			})
		}
	}},

	{"decoding by graphs", 0, func(w *world, n int) {
		for range 40 {
			w.now += int64(w.ExpFloat64() * 400e6)
			large.forward(w)
			for range 10 + w.IntN(300) {
				w.copy(256)
				w.graph("decode", 8*ms)
				w.launch("sample", 20*us)
				w.item()
			}
		}
	}},
	{"pictures of varying sizes", 0, func(w *world, n int) {
		for range 400 {
			w.spend(int64(w.ExpFloat64() * 30e6))
			w.copying(int64(1<<16 + w.IntN(1<<22)))
			for range 1 + w.IntN(12) {
				w.launch("resize", 50*us)
				w.launch([]string{"blur", "rotate", "crop", "flip"}[w.IntN(4)], 40*us)
			}
			w.copying(1 << 18)
		}
	}},
	{"a server with two threads", 0, func(w *world, n int) {
		for range 300 {
			w.thread = uint16(w.IntN(2))
			w.now += int64(w.ExpFloat64() * 50e6)
			w.copy(4096)
			for range 1 + w.IntN(5) {
				quick.forward(w)
			}
			w.item()
		}
	}},
	{"random matrices", 0, func(w *world, n int) {
		for range 20000 {
			w.launch("gemm "+string(rune('a'+w.IntN(3))), int64(100+w.IntN(900))*us)
			if w.IntN(30) == 0 {
				w.wait(wire.WaitStream)
			}
		}
	}},
}
