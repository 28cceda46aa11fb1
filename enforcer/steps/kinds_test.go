package steps

import "gpusteward/internal/wire"

// A program is a kind of program. Those that have steps run n of them.
type program struct {
	name  string
	steps int // 0: it has none
	run   func(w *world, n int)
}

// each is a program whose every step, by its number, does the same.
func each(does func(w *world, i int)) func(w *world, n int) {
	return func(w *world, n int) {
		for i := range n {
			w.step(func() { does(w, i) })
		}
	}
}

// answers is a server that answers requests after random pauses: a prompt, and at least so many tokens.
func answers(requests int, pause float64, prompt model, least, more int, token func(w *world)) func(w *world, n int) {
	return func(w *world, _ int) {
		for range requests {
			w.now += int64(w.ExpFloat64() * pause)
			prompt.forward(w)
			for range least + w.IntN(more) {
				token(w)
			}
		}
	}
}

var small = model{name: "small ", layers: 4, cost: 40 * us, eager: 12 * us}
var large = model{name: "large ", layers: 24, cost: 60 * us, eager: 12 * us}
var quick = model{name: "quick ", layers: 2, cost: 5 * us, eager: 10 * us}

// programs are those on which the finder was made, and some that were kept back while it was made.
var programs = []program{
	{"eager, item each step", 300, each(func(w *world, _ int) {
		w.spend(ms)
		w.copy(65536)
		small.train(w)
		w.item()
	})},
	{"eager, item each 10th step, GPU-bound", 400, each(func(w *world, i int) {
		w.copy(65536)
		large.train(w)
		if i%10 == 9 {
			w.launch("mean", us)
			w.item()
		}
	})},
	{"torch.compile", 300, each(func(w *world, _ int) {
		w.copy(1 << 20)
		for i := range 40 {
			w.launch("triton forward "+string(rune('a'+i%20)), 50*us)
		}
		w.on(7, func() {
			for i := range 70 {
				w.launch("triton backward "+string(rune('a'+i%33)), 50*us)
			}
		})
		w.launch("fused adam", 200*us)
		w.launch("fused adam", 200*us)
	})},
	{"one graph a step, nothing else", 500, each(func(w *world, _ int) { w.graph("step", 3*ms) })},
	{"DDP", 300, each(func(w *world, _ int) {
		w.copy(1 << 18)
		small.forward(w)
		w.on(7, func() {
			for b := range 5 {
				for k := range 9 {
					small.op(w, "backward "+string(rune('a'+k)), 40*us)
				}
				w.collective("all_reduce "+string(rune('0'+b/2)), 300*us)
			}
		})
		small.adam(w)
		w.item()
	})},
	{"FSDP", 300, each(func(w *world, _ int) {
		w.copy(1 << 18)
		for range 12 {
			w.collective("all_gather", 200*us)
			for k := range 10 {
				small.op(w, "layer "+string(rune('a'+k)), 40*us)
			}
		}
		w.on(7, func() {
			for range 12 {
				w.collective("all_gather", 200*us)
				for k := range 16 {
					small.op(w, "layer backward "+string(rune('a'+k)), 40*us)
				}
				w.collective("reduce_scatter", 200*us)
			}
		})
		small.adam(w)
	})},
	{"accumulation of 16, logs each 5th step", 80, each(func(w *world, s int) {
		for i := range 16 {
			w.copy(1 << 16)
			small.forward(w)
			small.backward(w, i > 0)
		}
		small.adam(w)
		if s%5 == 4 {
			w.launch("mean", us)
			w.item()
		}
	})},
	{"JAX, few launches", 400, each(func(w *world, _ int) {
		w.spend(500 * us)
		w.copy(1 << 18)
		w.launch("fusion_1", 2*ms)
		w.launch("gemm_fusion", 3*ms)
		w.launch("fusion_2", ms)
		w.wait(wire.WaitEvent)
	})},
	{"Triton loop", 400, each(func(w *world, _ int) {
		for _, k := range []string{"a", "b", "c", "b"} {
			w.spend(20 * us)
			w.launch("triton "+k, 400*us)
		}
	})},
	{"Trainer with logs, evaluation, checkpoints", 400, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.spend(2 * ms)
				for range 3 {
					w.copy(1 << 15)
				}
				small.forward(w)
				small.backward(w, false)
				for range 12 {
					w.launch("norm", 5*us)
				}
				w.launch("clip", 5*us)
				small.adam(w)
				w.launch("loss add", us)
				if i%10 == 9 {
					w.launch("loss mean", us)
					w.launch("loss sub", us)
					w.item()
				}
			})
			if i%70 == 69 {
				evaluate(w, small, 30)
			}
			if i%150 == 149 {
				for range 50 {
					w.copying(1 << 22)
					w.spend(5 * ms)
				}
			}
		}
	}},
	{"bound by the DataLoader", 300, each(func(w *world, i int) {
		w.spend(int64(18+4*w.Float64()) * ms)
		if i%40 == 39 {
			w.spend(900 * ms)
		}
		w.copy(1 << 20)
		small.train(w)
		w.item()
	})},
	{"AMP with a grad scaler", 300, each(func(w *world, i int) {
		w.copy(1 << 18)
		small.forward(w)
		w.launch("scale", us)
		small.backward(w, false)
		w.launch("unscale", 10*us)
		w.item() // found_inf
		if i%53 != 3 {
			small.adam(w)
		}
		w.launch("update scale", us)
	})},
	{"dynamic padding", 900, each(func(w *world, _ int) {
		length := 4 + w.IntN(9)
		m := small
		m.cost = m.cost * int64(length) / 8
		w.spend(ms)
		for range 3 {
			w.copy(int64(length) * 4096)
		}
		padded(w, m, length)
		w.item()
	})},
	{"GAN", 300, each(func(w *world, _ int) {
		d, g := model{"D ", 2, 40 * us, 12 * us}, model{"G ", 3, 40 * us, 12 * us}
		w.copy(1 << 20)
		d.forward(w)
		g.forward(w)
		d.forward(w)
		d.backward(w, false)
		d.backward(w, true)
		d.adam(w)
		d.forward(w)
		d.backward(w, false)
		g.backward(w, false)
		g.adam(w)
		w.item()
	})},
	{"another batch size", 300, func(w *world, n int) {
		for i := range n {
			m := small
			if i >= n/3 {
				m.name, m.cost = "other ", 90*us
			}
			w.step(func() {
				w.spend(ms)
				w.copy(1 << 18)
				m.train(w)
				w.item()
			})
		}
	}},

	{"long requests of varying lengths", 0, answers(30, 300e6, small, 50, 400, decode)},
	{"single forward passes at random times", 0, func(w *world, n int) {
		for range 300 {
			w.now += int64(w.ExpFloat64() * 200e6)
			w.copy(1 << 14)
			small.forward(w)
			w.item()
		}
	}},
	{"a notebook", 0, func(w *world, n int) {
		for range 80 {
			w.now += int64(w.ExpFloat64() * 8e9)
			cell := w.IntN(12)
			for range 1 + w.IntN(4) {
				w.copying(int64(w.IntN(1 << 22)))
				for k := range 3 + w.IntN(20) {
					w.launch("cell "+string(rune('a'+cell))+string(rune('a'+k)), 30*us)
				}
				w.item()
			}
		}
	}},
	{"one kernel without end", 0, func(w *world, n int) {
		for range 50000 {
			w.launch("burn", 500*us)
		}
	}},
	{"one kernel, waited for", 0, func(w *world, n int) {
		for range 5000 {
			w.launch("burn", 500*us)
			w.wait(wire.WaitContext)
		}
	}},
	{"autotuning", 0, func(w *world, n int) {
		for k := range 60 {
			w.spend(int64(20+w.IntN(200)) * ms)
			for range 25 + w.IntN(200) {
				w.copy(1 << 24) // clears the cache
				w.launch("candidate "+string(rune('a'+k)), int64(50+w.IntN(200))*us)
			}
			w.wait(wire.WaitContext)
		}
	}},
	{"CNN with an optimizer of single tensors", 250, each(func(w *world, i int) {
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
	})},
	{"accumulation of 4 as graphs", 700, each(func(w *world, _ int) {
		for range 4 {
			w.copy(1 << 16)
			w.graph("micro", 3*ms)
		}
		w.graph("optimizer", ms)
	})},
	{"DDP, accumulation of 8 without synchronization", 120, each(func(w *world, _ int) {
		for i := range 8 {
			w.copy(1 << 16)
			quick.forward(w)
			quick.backward(w, i > 0)
		}
		for range 3 {
			w.collective("all_reduce", 500*us)
		}
		quick.adam(w)
	})},
	{"copies by another thread", 300, each(func(w *world, _ int) {
		small.forward(w)
		w.on(2, func() { w.copy(1 << 20); w.note(wire.EventWait, 1); w.spend(50 * us); w.note(wire.EventWaited, 1) })
		small.backward(w, false)
		if w.IntN(2) == 0 {
			w.on(3, func() { w.copy(1 << 10) })
		}
		small.adam(w)
	})},
	{"three losses, three networks", 150, each(func(w *world, i int) {
		a, b := model{"A ", 3, 30 * us, 10 * us}, model{"B ", 3, 30 * us, 10 * us}
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
	})},
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
	{"a recurrent network over sequences of one length", 150, each(func(w *world, _ int) {
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
	})},

	{"decoding by graphs", 0, answers(40, 400e6, large, 10, 300, func(w *world) {
		w.copy(256)
		w.graph("decode", 8*ms)
		w.launch("sample", 20*us)
		w.item()
	})},
	{"random matrices", 0, func(w *world, n int) {
		for range 20000 {
			w.launch("gemm "+string(rune('a'+w.IntN(3))), int64(100+w.IntN(900))*us)
			if w.IntN(30) == 0 {
				w.wait(wire.WaitStream)
			}
		}
	}},
}

// decode is a token.
func decode(w *world) {
	for range 6 {
		for _, k := range []string{"norm", "gemv qkv", "attend", "gemv out", "gemv up", "gemv down"} {
			w.spend(10 * us)
			w.launch("decode "+k, 20*us)
		}
	}
	w.launch("argmax", 5*us)
	w.item()
}

// evaluate is an evaluation with its own loader.
func evaluate(w *world, m model, batches int) {
	for range batches {
		w.spend(ms)
		w.copy(1 << 15)
		m.forward(w)
		w.item()
	}
}

// padded is training on a batch of this length: the library chooses other kernels for other lengths.
func padded(w *world, m model, length int) {
	size := string(rune('a' + length/3))
	layer := func(way string, ops ...string) {
		for range m.layers {
			for _, k := range ops {
				w.spend(m.eager)
				if k[0] == 'g' {
					k += size
				}
				w.launch(way+k, m.cost)
			}
		}
	}
	m.op(w, "embed", m.cost)
	layer("forward ", "norm", "gemm 1", "attention", "gemm 2", "add", "norm", "gemm 3", "gelu", "gemm 4", "add")
	m.op(w, "loss", m.cost)
	w.on(7, func() {
		m.op(w, "loss backward", m.cost)
		layer("backward ", "add", "gemm 1", "gemm 2", "gelu", "gemm 3", "gemm 4", "norm", "gemm 5", "gemm 6", "attention",
			"gemm 7", "gemm 8", "norm")
		m.op(w, "embed backward", m.cost)
	})
	m.adam(w)
}
