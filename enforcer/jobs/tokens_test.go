package jobs

import (
	"testing"

	"gpusteward/internal/wire"
)

// token is one of an answer, or a step of a training whose data is in the GPU's
// memory: the thread that launches reads a little, and gives the GPU nothing.
func (r *rank) token(at int64) {
	for i := range 40 {
		r.note(at+int64(i)*200e3, wire.EventLaunch, uint32(100+i%10+i/20*50))
	}
	r.enter(at+20e6, 1<<14)
	r.note(at+21e6, wire.EventCopy, 1)
	r.note(at+22e6, wire.EventWait, 0)
	r.put64(128+80, r.entered) // its GPU has not come to the collective
}

// answers lets the thread go on.
func (r *rank) answers(at int64) {
	r.token(at)
	r.put64(128+72, r.entered)
	r.put64(128+80, 0)
	r.put64(128+32, r.entered)
	r.note(at+95e6, wire.EventWaited, 0)
}

// TestTokensThatStop lets the GPU of one of four ranks stand that may decode
// tokens, and so may not step.
func TestTokensThatStop(t *testing.T) {
	every := func(does func(*rank, int64)) map[int]func(*rank, int64) {
		return map[int]func(*rank, int64){0: does, 1: does, 2: does, 3: does}
	}
	waits := func(r *rank, at int64) {
		r.token(at)
		r.put64(128+72, r.entered)
		r.put64(128+80, 0)
	}
	prompt := func(r *rank, at int64) {
		for i := range 160 {
			r.note(at+int64(i)*100e3, wire.EventLaunch, uint32(700+i))
		}
		r.token(at + 20e6)
	}
	for _, c := range []struct {
		name   string
		last   map[int]func(*rank, int64)
		early  int // hangs after 20 s
		within int // and after 70
	}{
		{"an endless kernel", map[int]func(*rank, int64){0: waits, 1: waits, 2: waits, 3: (*rank).token}, 1, 1},
		{"a long prompt", every(prompt), 0, 1},
		{"no request", every(func(*rank, int64) {}), 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 4)
			for range 100 {
				h.step(every((*rank).answers))
			}
			if all, _ := h.look(); all[0].Steps != 0 {
				t.Fatalf("%d tokens were taken for steps", all[0].Steps)
			}
			h.step(c.last)
			hangs := h.wait(20)
			if len(hangs) != c.early || len(hangs) == 1 && (hangs[0].Reason != "kernel" || hangs[0].Rank != 3) {
				t.Errorf("after 20 s: %+v", hangs)
			}
			if hangs := h.wait(50); len(hangs) != c.within {
				t.Errorf("after 70 s: %+v", hangs)
			}
		})
	}
}
