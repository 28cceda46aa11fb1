package jobs

import (
	"testing"
	"time"
)

// TestMarks lets two ranks stand in collectives of which few are measured. The
// other streams of the first rank wait for the last one.
func TestMarks(t *testing.T) {
	const reached, unreached, other = 248, 252, 256
	for _, c := range []struct {
		name string
		does func(first, second *rank)
		want string
	}{
		{"its kernel does not end", func(_, r *rank) { r.put32(unreached, uint32(r.entered)) }, "kernel"},
		{"it waits there, too", func(_, r *rank) { r.put32(reached, uint32(r.entered)) }, "unknown"},
		{"it waits there later", func(a, b *rank) {
			a.put32(reached, uint32(a.entered-1))
			b.put32(unreached, uint32(b.entered))
		}, "unknown"},
		{"nothing tells", func(_, _ *rank) {}, "unknown"},
		{"it may wait in another communicator", func(_, r *rank) {
			r.put32(unreached, uint32(r.entered))
			for i, v := range []uint64{88, 1 | 2<<32, 7, 0, 6} {
				r.put64(other+8*i, v)
			}
		}, "unknown"},
		{"it has done with another communicator", func(_, r *rank) {
			r.put32(unreached, uint32(r.entered))
			for i, v := range []uint64{88, 1 | 2<<32, 7, 0, 7} {
				r.put64(other+8*i, v)
			}
		}, "kernel"},
		{"it may wait for data", func(_, r *rank) {
			r.put32(unreached, uint32(r.entered))
			r.put64(other, 88)
			r.put64(other+8, 1|2<<32)
			r.put32(other+88, 1)
		}, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 2)
			for range 100 {
				h.step(nil)
			}
			unmeasured := func(r *rank, at int64) {
				r.hangs(at)
				r.put64(160, r.entered-8)
				r.put64(200, r.entered-8)
				if r == h.ranks[0] {
					r.put32(reached, uint32(r.entered))
				} else {
					c.does(h.ranks[0], r)
				}
			}
			h.step(map[int]func(*rank, int64){0: unmeasured, 1: unmeasured})
			hangs := h.wait(15)
			if len(hangs) != 1 || hangs[0].Reason != c.want || c.want == "kernel" && hangs[0].Rank != 1 {
				t.Errorf("%+v, want rank 1 %s", hangs, c.want)
			}
		})
	}
}

// TestAGPUThatGetsOnDoesNotHang lets the threads of a job stand, as in a step that
// is longer than usual, while its GPUs get on in their collectives.
func TestAGPUThatGetsOnDoesNotHang(t *testing.T) {
	h := newHost(t, 2)
	for range 100 {
		h.step(nil)
	}
	waits := func(r *rank, at int64) {
		r.hangs(at)
		r.put64(144, r.entered+100)
	}
	h.step(map[int]func(*rank, int64){0: waits, 1: waits})
	for second := range 60 {
		for _, r := range h.ranks {
			r.put64(160, r.entered+uint64(second))
			r.put64(200, r.entered+uint64(second))
		}
		if hangs := h.wait(1); len(hangs) != 0 {
			t.Fatalf("after %v: %+v", time.Duration(second)*time.Second, hangs)
		}
	}
	if hangs := h.wait(15); len(hangs) != 1 || hangs[0].Reason != "unknown" {
		t.Errorf("15 s after they last got on: %+v, want an unknown culprit", hangs)
	}
}
