package steps

import (
	"fmt"
	"testing"

	"gpusteward/internal/wire"
)

// room lets the next launch wait until the GPU has little work, as the hook does.
func (w *world) room() {
	if until := w.gpu - 50*ms; until > w.now {
		w.note(wire.EventWait, uint32(wire.WaitQueue))
		w.now = until
		w.note(wire.EventWaited, uint32(wire.WaitQueue))
	}
}

// TestLaunchesThatWaitMarkNoStep has a training that is bound by its GPU and reads the loss in each tenth step, so that
// other launches of each step wait for room. The finder begins anywhere in it, as after a new broker.
func TestLaunchesThatWaitMarkNoStep(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := newWorld(seed)
		op := func(kind string, n, kernels int) {
			for k := range n {
				w.spend(2 * us)
				w.room()
				w.launch(fmt.Sprint(kind, k%kernels), ms)
			}
		}
		for i := range 500 {
			began := w.now
			op("forward", 12, 10)
			w.on(7, func() { op("backward", 12, 8) })
			op("adam", 4, 4)
			w.truth = append(w.truth, span{began, w.now})
			if i%10 == 9 {
				w.item()
				w.spend(50 * ms)
			}
		}
		w.events = w.events[37*seed:]
		if r := judge(w); r.counted < 0.9 || r.counted > 1.1 || r.stepping < 0.9 {
			t.Errorf("seed %d: %+v", seed, r)
		}
	}
}

// TestLaunchesThatWaitEvaluateNothing has a step of 16 pieces, of which the launches of
// the first wait for room. Its update is known nevertheless.
func TestLaunchesThatWaitEvaluateNothing(t *testing.T) {
	w := newWorld(1)
	waits := false
	op := func(kind string, n, kernels int) {
		for k := range n {
			w.spend(2 * us)
			if waits {
				w.room()
			}
			w.launch(fmt.Sprint(kind, k%kernels), ms)
		}
	}
	for range 60 {
		w.step(func() {
			for piece := range 16 {
				waits = piece == 0
				op("forward", 12, 10)
				w.on(7, func() { op("backward", 12, 8) })
			}
			op("adam", 4, 4)
		})
	}
	if r := judge(w); r.found > 20 || r.counted < 0.97 || r.counted > 1.03 {
		t.Errorf("%+v", r)
	}
}
