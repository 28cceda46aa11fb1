package jobs

import (
	"strings"
	"testing"
	"time"

	"gpusteward/internal/wire"
)

// TestMarks lets two ranks stand in collectives of which few are measured. The
// other streams of the first rank wait for the last one.
func TestMarks(t *testing.T) {
	t.Parallel()
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
		{"only the first rank's are all measured", func(a, _ *rank) {
			a.put64(160, a.entered-1)
			a.put64(200, a.entered)
		}, "unknown"},
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
			h := stepping(t, 2)
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
			h.tells(15, c.want, 1)
		})
	}
}

// TestAGPUThatGetsOnDoesNotHang lets the threads of a job stand, as in a step that
// is longer than usual, while its GPUs get on in their collectives.
func TestAGPUThatGetsOnDoesNotHang(t *testing.T) {
	h := stepping(t, 2)
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
	h.tells(15, "unknown", -1)
}

// long is a step of 15 s, most of which the rank waits for its GPU, or calls it each second.
func (r *rank) long(at int64, waits bool) {
	r.launches(at)
	r.enter(at+20e6, 1<<20)
	wait := at + 25e6
	for i := range 14 {
		if !waits {
			wait = at + int64(i+1)*1e9
			r.note(wait, wire.EventLaunch, uint32(300+i))
		}
	}
	r.note(wait, wire.EventWait, 0)
	r.note(at+14.9e9, wire.EventWaited, 0)
}

// long lets the job make 60 such steps, in which some wait only at the end.
func (h *host) long(short map[int]bool) {
	for range 60 {
		for i, r := range h.ranks {
			r.long(h.at, !short[i])
		}
		h.at += 15e9
		h.look()
	}
}

// TestAKernelIsJudgedByTheStep lets the GPU of the second rank not come to a collective of a job with steps of 15 s.
func TestAKernelIsJudgedByTheStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		short  bool // the second rank's own waits
		power  int  // s, for which it reduces the clocks
		stands bool // the first rank's GPU is in the collective
		after  int  // s, from which on the kernel is named
	}{
		{"the other one's GPU waits for it", false, 0, true, 25},
		{"it shares the other one's steps", true, 0, true, 25},
		{"its GPU is slowed", false, 60, true, 45},
		{"its GPU was slowed for a time", false, 10, true, 35},
		{"nothing waits for it", false, 0, false, 45},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 2)
			began := int64(0)
			h.Observer.Evidence = func(string, int) Evidence {
				return Evidence{Power: c.power > 0 && (began == 0 || h.at < began+int64(c.power)*1e9)}
			}
			h.long(map[int]bool{1: c.short})
			began = h.at
			for i, r := range h.ranks {
				r.long(h.at, true)
				r.head-- // it still waits
				r.put64(0, r.head)
				if i == 1 {
					r.put64(208, r.entered)
				} else if c.stands {
					r.put64(200, r.entered)
				}
			}
			h.tells(c.after-2, "", 0)
			if c.stands {
				h.tells(6, "kernel", 1)
			}
		})
	}
}

// TestOddCalls lets one of two ranks call a collective of another size, and the usual one after it.
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
		{"of three, it alone", calls(usual, usual), calls(other), nil, "unlike"},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := map[int]func(*rank, int64){0: c.first, 1: c.second}
			if strings.HasPrefix(c.name, "of three") {
				last[2] = c.first
			}
			h := stepping(t, len(last))
			h.step(last)
			if c.then != nil {
				c.then(h.ranks[0], h.ranks[1])
			}
			h.tells(15, c.want, map[string]int{"unlike": 1, "absent": 0}[c.want])
		})
	}
}
