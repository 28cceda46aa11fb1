package steps

import (
	"fmt"

	"gpusteward/internal/wire"
)

// novel are programs that were written before the finder was taught to tell tokens
// from steps, and looked at while it was.
var novel = []program{
	{"vision transformer, clipping, moving average, loader", 300, func(w *world, n int) {
		vit := model{"vit ", 6, 60 * us, 11 * us}
		for range n {
			w.step(func() {
				w.spend(int64(1+3*w.Float64()) * ms)
				w.copy(4 << 20)
				w.copy(1 << 11)
				w.ops("mixup", 5, 5, 20*us)
				vit.forward(w)
				vit.backward(w, false)
				w.ops("norm", 9, 3, 8*us)
				w.ops("clip", 2, 1, 8*us)
				vit.adam(w)
				w.ops("average", 6, 1, 20*us)
				w.item()
			})
		}
	}},
	{"JAX, batches by another thread, log each 20th step", 400, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.on(4, func() { w.copy(1 << 20) })
				w.ops("forward fusion", 9, 9, 150*us)
				w.ops("backward fusion", 17, 17, 150*us)
				w.ops("update fusion", 3, 3, 90*us)
				if i%20 == 19 {
					w.copying(64)
				}
			})
		}
	}},
	{"adapters, recomputation, accumulation of 4, never waits", 150, func(w *world, n int) {
		for i := range n {
			w.step(func() {
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
			})
		}
	}},

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
	{"a transcription of long recordings", 0, func(w *world, n int) {
		encoder := model{"encoder ", 12, 90 * us, 8 * us}
		for range 90 {
			w.spend(12 * ms) // spectrum
			w.copying(480 << 10)
			encoder.forward(w)
			for range 20 + w.IntN(180) {
				w.copy(8)
				for range 6 {
					w.ops("decoder", 14, 12, 9*us)
				}
				w.ops("logits", 6, 6, 9*us)
				w.item()
			}
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
	{"a notebook whose cells run again and again", 0, func(w *world, n int) {
		for range 120 {
			w.now += int64(w.ExpFloat64() * 5e9)
			cell := w.IntN(5)
			for range []int{1, 1, 3, 10, 24}[cell] {
				if cell%2 == 0 {
					w.copying(1 << 18)
				}
				w.ops(fmt.Sprint("cell ", cell), 7+5*cell, 4+3*cell, 40*us)
				w.item()
			}
		}
	}},
}

// withheld are such programs that were kept back until the finder was changed. They
// showed a fault, which was mended then: a server may wait for a token without a copy.
var withheld = []program{
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
	{"radiance field, grid each 16th step", 1500, func(w *world, n int) {
		for i := range n {
			w.step(func() {
				w.ops("rays", 6, 6, 30*us)
				w.ops("march", 3, 3, 90*us)
				w.ops("field", 5, 5, 120*us)
				w.ops("composite", 2, 2, 30*us)
				w.on(7, func() { w.ops("field backward", 9, 9, 140*us) })
				w.ops("adam", 4, 2, 60*us)
				if i%16 == 15 {
					w.ops("grid", 7, 7, 80*us)
				}
				if i%100 == 99 {
					w.item()
				}
			})
		}
	}},

	{"text generation, requests now and then", 0, func(w *world, n int) {
		for range 70 {
			w.now += int64(w.ExpFloat64() * 400e6)
			w.copy(int64(1+w.IntN(60)) << 6)
			large.forward(w)
			for range 1 + int(w.ExpFloat64()*150) {
				w.copy(64)
				w.copy(64)
				for range 8 {
					w.ops("flash decode", 8, 8, 15*us)
				}
				w.ops("warp", 4, 4, 9*us)
				w.copying(8)
			}
		}
	}},
	{"embeddings, batches by arrival", 0, func(w *world, n int) {
		for range 1200 {
			w.now += int64(w.ExpFloat64() * 12e6)
			batch := 1 + int(w.ExpFloat64()*8)
			w.spend(int64(batch) * 40 * us)
			w.copy(int64(batch) << 10)
			w.copy(int64(batch) << 10)
			bert := model{fmt.Sprint("bert ", min(batch/4, 4), " "), 6, int64(10+4*batch) * us, 8 * us}
			bert.forward(w)
			w.copying(int64(batch) << 12)
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
	{"translation of a file by beam search", 0, func(w *world, n int) {
		m := model{"encoder ", 6, 25 * us, 8 * us}
		for range 120 {
			w.copy(2048)
			m.forward(w)
			for word := range 6 + int(w.ExpFloat64()*50) {
				for range 6 {
					w.ops(fmt.Sprint("attend ", word/32), 2, 2, 9*us)
					w.ops("decoder", 9, 9, 9*us)
				}
				w.ops("top k", 5, 5, 9*us)
				w.copying(256)
				w.copy(64)
				w.ops("reorder", 12, 1, 9*us)
			}
			w.copying(4096)
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
