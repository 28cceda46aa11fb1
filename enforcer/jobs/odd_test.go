package jobs

import (
	"testing"

	"gpusteward/internal/wire"
)

// TestOddCalls lets one of two ranks call a collective of another size, and the
// usual one after it.
func TestOddCalls(t *testing.T) {
	t.Parallel()
	calls := func(sizes ...uint64) func(r *rank, at int64) {
		return func(r *rank, at int64) {
			for _, size := range sizes {
				r.enter(at, size)
			}
			r.put64(160, 100) // the GPU has ended the steps before, and is in the first call
			r.put64(200, 101)
			r.note(at, wire.EventWait, 0)
		}
	}
	const usual, other = 1 << 20, 1 << 19
	for _, c := range []struct {
		name          string
		first, second func(r *rank, at int64)
		then          func(first, second *rank)
		want          string
	}{
		{"its last call", calls(usual), calls(other), nil, "unlike"},
		{"and the next one", calls(usual), calls(other, usual), nil, "unlike"},
		{"both call the next one", calls(usual, usual), calls(other, usual), nil, "unlike"},
		{"the other one does not come to it", func(*rank, int64) {}, calls(other), nil, "absent"},
		{"the other one waits before it", calls(usual), calls(usual, other), nil, "absent"},
		{"both call it", calls(other, usual), calls(other, usual), nil, "unknown"},
		{"another communicator had it", calls(usual, usual), calls(other, usual), func(a, b *rank) {
			a.put64(128, 78)
			b.put64(128, 78)
		}, "unknown"},
		{"the GPU has ended it", calls(usual, usual), calls(other, usual), func(_, b *rank) { b.put64(160, 101) }, "unknown"},
		{"the GPU has begun the next one", calls(usual, usual), calls(other, usual), func(_, b *rank) { b.put64(200, 102) },
			"unknown"},
		{"what came before was lost", calls(usual, usual), func(r *rank, at int64) {
			for range wire.EventsKept {
				r.note(at, wire.EventLaunch, 100)
			}
			calls(other, usual)(r, at)
		}, nil, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := stepping(t, 2)
			h.step(map[int]func(*rank, int64){0: c.first, 1: c.second})
			if c.then != nil {
				c.then(h.ranks[0], h.ranks[1])
			}
			h.tells(15, c.want, map[string]int{"unlike": 1, "absent": 0}[c.want])
		})
	}
}
