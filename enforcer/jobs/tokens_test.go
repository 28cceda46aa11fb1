package jobs

import (
	"testing"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// token is one of an answer, or a step of a training whose data is in the GPU's
// memory: the thread that launches reads a little, and gives the GPU nothing.
func (r *rank) token(at int64) {
	r.launches(at)
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

// TestTokensThatStop lets the GPU of one of four ranks stand that may decode tokens, and so may not step.
func TestTokensThatStop(t *testing.T) {
	t.Parallel()
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
			fixture.Equal(t, len(h.wait(50)), c.within, "after 70 s")
		})
	}
}

// listens waits in a collective for the next request, which another rank is to send.
func listens(op wire.Collective) func(*rank, int64) {
	return func(r *rank, at int64) {
		r.enter(at, 1<<3)
		r.put32(128+64, uint32(op))
		r.put64(128+72, r.entered)
		r.note(at+1e6, wire.EventWait, 0)
	}
}

// fifth waits, as listens does, for a rank that is not on the host.
func fifth(op wire.Collective) func(*rank, int64) {
	return func(r *rank, at int64) {
		listens(op)(r, at)
		for _, r := range r.h.ranks {
			r.put32(140, 5)
		}
	}
}

// TestServersWaitForRequests: the ranks of a server wait in a broadcast, for hours, until one
// of them sends a request. In another collective, or if they step, they wait for a culprit.
func TestServersWaitForRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		does func(*rank, int64) // again and again
		op   wire.Collective
		last func(*rank, int64)
		want string
	}{
		{"a server", (*rank).answers, wire.Broadcast, nil, ""},
		{"the rank that listens is stopped", (*rank).answers, wire.Broadcast,
			func(r *rank, _ int64) { r.proc('T', 0) }, "stopped"},
		{"it waits for its GPU", (*rank).answers, wire.Broadcast,
			func(r *rank, at int64) { r.note(at, wire.EventWait, 0) }, "absent"},
		{"another collective", (*rank).answers, wire.AllReduce, nil, "absent"},
		{"a training", (*rank).train, wire.Broadcast, nil, "absent"},
		{"a server whose listener is on another host", (*rank).answers, wire.Broadcast, fifth(wire.Broadcast), ""},
		{"another collective with a rank there", (*rank).answers, wire.AllReduce, fifth(wire.AllReduce), "elsewhere"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 4)
			for range 100 {
				h.step(map[int]func(*rank, int64){0: c.does, 1: c.does, 2: c.does, 3: c.does})
			}
			last := func(*rank, int64) {}
			if c.last != nil {
				last = c.last
			}
			waits := listens(c.op)
			h.step(map[int]func(*rank, int64){0: last, 1: waits, 2: waits, 3: waits})
			seconds := 30
			if c.want == "" || c.want == "elsewhere" { // a rank elsewhere may save
				seconds = 1000
			}
			hangs := h.wait(seconds)
			fixture.If(t, c.want == "" && len(hangs) > 0, "%+v", hangs)
			if c.want != "" && (len(hangs) != 1 || hangs[0].Reason != c.want || c.want != "elsewhere" && hangs[0].Rank != 0) {
				t.Errorf("%+v, want rank 0 %s", hangs, c.want)
			}
		})
	}
}
