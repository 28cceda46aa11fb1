package jobs

import "testing"

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
