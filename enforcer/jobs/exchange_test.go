package jobs

import (
	"maps"
	"slices"
	"testing"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// exchanges writes what a rank has exchanged with a neighbour, as the hook does:
// with the one before it, and then with the one behind it.
func (r *rank) exchanges(place int, p wire.Peer) {
	if r == r.h.ranks[0] {
		place = 0 // the first one
	}
	r.put64(128, 77)
	for i, v := range []int{r.pid - r.h.ranks[0].pid, len(r.h.ranks)} {
		r.put32(136+4*i, uint32(v))
	}
	r.put32(128+88+8*place, p.Rank+1)
	r.put32(128+92+8*place, uint32(p.Sent)|uint32(p.Received)<<16)
	for bit, is := range map[int]bool{112: p.Inside, 116: p.Before} {
		if is {
			r.put32(128+bit, 1<<place)
		}
	}
}

// pipe is a pipeline of four stages that has stepped, and whose first stages
// have sent seven times. Each stage then does its part of a last step.
func pipe(t *testing.T, last map[int]func(r *rank, at int64)) *host {
	h := newHost(t, 4)
	stage := func(r *rank, at int64) {
		r.train(at)
		clear(r.trace[128 : 128+128])
	}
	usual := map[int]func(*rank, int64){0: stage, 1: stage, 2: stage, 3: stage}
	for range 100 {
		h.step(usual)
	}
	for i := range h.ranks {
		usual[i] = func(r *rank, at int64) {
			if does := last[i]; does != nil {
				does(r, at)
			} else {
				stage(r, at)
				r.head-- // it is not told to go on
				r.put64(0, r.head)
			}
			if i > 0 {
				r.exchanges(0, wire.Peer{Rank: uint32(i - 1), Received: 7})
			}
			if i < 3 {
				r.exchanges(1, wire.Peer{Rank: uint32(i + 1), Sent: 7})
			}
		}
	}
	h.step(usual)
	return h
}

// TestPipelines names the stage for which the others wait, by the exchanges that
// it has not called, or to which its GPU has not come.
func TestPipelines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		rank         int
		last         map[int]func(r *rank, at int64)
		then         func(h *host)
	}{
		{"the last stage is absent", "absent", 3, map[int]func(*rank, int64){3: func(*rank, int64) {}}, func(h *host) {
			h.ranks[0].exchanges(1, wire.Peer{Rank: 1, Sent: 7, Inside: true})
			h.ranks[2].exchanges(1, wire.Peer{Rank: 3, Sent: 8, Inside: true})
		}},
		{"counts go round", "absent", 3, map[int]func(*rank, int64){3: func(*rank, int64) {}}, func(h *host) {
			h.ranks[3].exchanges(0, wire.Peer{Rank: 2, Received: 65535})
			h.ranks[2].exchanges(1, wire.Peer{Rank: 3, Sent: 0, Inside: true})
		}},
		{"a stage skips a call", "absent", 2, nil, func(h *host) {
			h.ranks[2].exchanges(1, wire.Peer{Rank: 3, Sent: 6})
			h.ranks[3].exchanges(0, wire.Peer{Rank: 2, Received: 7, Inside: true})
		}},
		{"a kernel of the third stage has no end", "kernel", 2, nil, func(h *host) {
			h.ranks[0].exchanges(1, wire.Peer{Rank: 1, Sent: 7, Inside: true})
			h.ranks[1].exchanges(1, wire.Peer{Rank: 2, Sent: 7, Inside: true})
			h.ranks[2].exchanges(0, wire.Peer{Rank: 1, Received: 7, Before: true})
		}},
		{"a debtor that waits for its kernel's neighbour", "kernel", 2, nil, func(h *host) {
			h.ranks[0].exchanges(1, wire.Peer{Rank: 1, Sent: 9})
			h.ranks[1].exchanges(1, wire.Peer{Rank: 2, Sent: 7, Inside: true})
			h.ranks[2].exchanges(0, wire.Peer{Rank: 1, Received: 7, Before: true})
		}},
		{"nothing tells", "unknown", -1, nil, func(*host) {}},
		{"all are in their exchanges", "unknown", -1, nil, func(h *host) {
			for i := range 3 {
				h.ranks[i].exchanges(1, wire.Peer{Rank: uint32(i + 1), Sent: 7, Inside: true})
				h.ranks[i+1].exchanges(0, wire.Peer{Rank: uint32(i), Received: 7, Inside: true})
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := pipe(t, c.last)
			c.then(h)
			h.tells(5, "", 0)
			h.tells(10, c.reason, c.rank)
		})
	}
}

// TestAStageThatComputesIsNotBlamed for what it has not called yet.
func TestAStageThatComputesIsNotBlamed(t *testing.T) {
	t.Parallel()
	h := pipe(t, map[int]func(*rank, int64){3: func(*rank, int64) {}})
	h.ranks[2].exchanges(1, wire.Peer{Rank: 3, Sent: 8, Inside: true})
	for range 15 {
		h.ranks[3].proc('R', 50)
		h.wait(1)
	}
	v := judgeGroup(77, slices.Collect(maps.Values(h.Observer.processes)), h.at)
	fixture.If(t, v.waiting == 0 || v.culprit != nil, "%d wait, and it is blamed: %q", v.waiting, v.reason)
}

// TestStageOnAnotherHost does not blame a stage that may wait for one there.
func TestStageOnAnotherHost(t *testing.T) {
	h := pipe(t, nil)
	for _, r := range h.ranks {
		r.put32(140, 5) // a fifth stage
	}
	h.ranks[3].exchanges(1, wire.Peer{Rank: 4, Sent: 7})
	h.ranks[2].exchanges(1, wire.Peer{Rank: 3, Sent: 8, Inside: true})
	h.tells(60, "", 0)
}

// TestLongStepsAreJudgedSoon lets a job hang whose steps are 15 s of waiting for
// the GPU. Three of them need not pass if the culprit does nothing.
func TestLongStepsAreJudgedSoon(t *testing.T) {
	t.Parallel()
	h := newHost(t, 4)
	h.long(nil)
	waits := func(r *rank, at int64) {
		r.long(at, true)
		r.head--
		r.put64(0, r.head)
		r.put64(200, r.entered)
	}
	h.step(map[int]func(*rank, int64){0: waits, 1: waits, 2: func(*rank, int64) {}, 3: waits})
	h.tells(8, "", 0)
	h.tells(8, "absent", 2)
}
