package jobs

import (
	"testing"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/wire"
)

// graph is a step with a graph: nothing is known of its collective on the GPU.
func (r *rank) graph(at int64) {
	r.note(at, wire.EventGraph, 100)
	r.enter(at+20e6, 1<<20)
	r.put64(160, 0)
	r.put64(200, 0)
	r.note(at+25e6, wire.EventWait, 0)
}

// TestHangsBeforeStepsAreKnown lets jobs hang that have just started. The last of
// four ranks does otherwise than the others, which wait in their last collective.
func TestHangsBeforeStepsAreKnown(t *testing.T) {
	t.Parallel()
	starts := func(r *rank, _ int64) {
		r.put64(128, 77)
		r.put32(136, 3)
		r.put32(140, 4)
	}
	for _, c := range []struct {
		name   string
		steps  int
		others func(r *rank, at int64)
		last   func(r *rank, at int64)
		reason string // after a minute
	}{
		{"absent", 5, (*rank).graph, func(*rank, int64) {}, "absent"},
		{"a collective left out", 5, (*rank).graph, func(r *rank, at int64) { r.note(at, wire.EventWait, 0) }, "absent"},
		{"it called one more", 5, (*rank).graph, func(r *rank, at int64) { r.graph(at); r.graph(at + 1e6) }, "unlike"},
		{"it has called none", 0, (*rank).graph, starts, "absent"},
		{"it has called none, and the others' GPUs stand", 0, (*rank).hangs, starts, "absent"},
		{"a long first step", 0, (*rank).graph, (*rank).graph, ""},
		{"a long step", 5, (*rank).graph, (*rank).graph, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 4)
			h.trains(c.steps)
			h.step(map[int]func(*rank, int64){0: c.others, 1: c.others, 2: c.others, 3: c.last})
			h.tells(55, "", 0)
			h.tells(15, c.reason, 3)
		})
	}
}

// TestAloneAKernelMayTakeLong lets a process without steps and without others wait for its GPU.
func TestAloneAKernelMayTakeLong(t *testing.T) {
	t.Parallel()
	h := newHost(t, 1)
	h.ranks[0].note(h.at, wire.EventLaunch, 100)
	h.ranks[0].note(h.at, wire.EventWait, 0)
	h.tells(600, "", 0)
}

// TestOneThatEndedWaitsForNoKernel lets a process that steps wait for an endless
// kernel, and be killed. Nobody else waits for it.
func TestOneThatEndedWaitsForNoKernel(t *testing.T) {
	t.Parallel()
	h := newHost(t, 1)
	r := h.ranks[0]
	for range 100 {
		h.step(map[int]func(*rank, int64){0: func(r *rank, at int64) {
			for i := range 40 {
				r.note(at+int64(i)*200e3, wire.EventLaunch, uint32(100+i))
			}
			r.note(at+25e6, wire.EventWait, 0)
			r.note(at+95e6, wire.EventWaited, 0)
		}})
	}
	r.note(h.at, wire.EventWait, 0)
	if hangs := h.wait(40); len(hangs) != 1 || hangs[0].Reason != "kernel" {
		t.Errorf("while it waits: %+v", hangs)
	}
	h.Observer.Observe(broker.Traced{Session: 1, PID: r.pid, Tenant: r.tenant, GPUs: []string{"GPU-0"},
		Trace: wire.TraceIn(r.trace), Ends: true})
	if _, hangs := h.Observer.Look(func(int) string { return "" }); len(hangs) != 0 {
		t.Errorf("once it has ended: %+v", hangs)
	}
}

// TestOneThatOnlyJoinedIsNoRank lets a stage of a pipeline be absent, in a
// communicator that a third process uses for nothing and leaves.
func TestOneThatOnlyJoinedIsNoRank(t *testing.T) {
	t.Parallel()
	h := pipe(t, map[int]func(*rank, int64){3: func(*rank, int64) {}})
	h.ranks[0].exchanges(1, wire.Peer{Rank: 1, Sent: 7, Inside: true})
	h.ranks[2].exchanges(1, wire.Peer{Rank: 3, Sent: 8, Inside: true})
	other := &rank{h: h, pid: 2000, tenant: "default", trace: make([]byte, wire.TraceSize)}
	other.clock(h.at - 1e9)
	h.ranks = append(h.ranks, other)
	for _, r := range h.ranks {
		r.put32(140, 5)
	}
	other.put64(128, 77)
	other.put32(136, 4)
	other.proc('T', 0)
	h.tells(20, "absent", 3)
}

// TestOneThatGetsOnExcusesNobody lets a rank be absent in a communicator of two,
// while another rank of the job gets on, and a third one has ended.
func TestOneThatGetsOnExcusesNobody(t *testing.T) {
	t.Parallel()
	h := stepping(t, 4)
	for i, r := range h.ranks {
		r.put64(160, r.entered) // nobody waits in the communicator of all
		if i >= 2 {
			for j, v := range []uint64{88, uint64(i-2) | 2<<32, uint64(8 - i)} { // the first has called one more
				r.put64(256+8*j, v)
			}
		}
	}
	h.ranks[2].note(h.at, wire.EventWait, 0)
	h.Observer.Observe(broker.Traced{Session: 2, PID: h.ranks[1].pid, Tenant: "default", Trace: wire.TraceIn(h.ranks[1].trace),
		Ends: true})
	var hangs []wire.HangStats
	for range 15 {
		h.ranks[0].note(h.at, wire.EventLaunch, 100)
		hangs = h.wait(1)
	}
	if len(hangs) != 1 || hangs[0].Reason != "absent" || hangs[0].PID != h.ranks[3].pid {
		t.Errorf("%+v, want rank 1 of two absent", hangs)
	}
}

// TestOtherWorkThanStepsHasTime lets ranks do what takes more calls than their
// steps. A kernel in it that takes half a minute is not unusual.
func TestOtherWorkThanStepsHasTime(t *testing.T) {
	t.Parallel()
	h := stepping(t, 2)
	other := func(r *rank, at int64) {
		for i := range uint32(200) {
			r.note(at, wire.EventLaunch, 1000+i)
		}
		r.hangs(at)
		if r == h.ranks[1] {
			r.put64(200, r.entered-1)
			r.put64(208, r.entered)
		}
	}
	h.step(map[int]func(*rank, int64){0: other, 1: other})
	h.tells(55, "", 0)
	h.tells(15, "kernel", 1)
}

// TestNobodyWaitsLongForOneThatCannotCall stops or ends a rank of a job that has
// just started. The others wait in a graph of which nothing is known.
func TestNobodyWaitsLongForOneThatCannotCall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		called bool // what the others have called
		gone   func(h *host, r *rank)
		want   string
	}{
		{"stopped", false, func(_ *host, r *rank) { r.proc('T', 0) }, "stopped"},
		{"ended", false, func(h *host, r *rank) {
			h.Observer.Observe(broker.Traced{Session: 4, PID: r.pid, Tenant: "default", Trace: wire.TraceIn(r.trace), Ends: true})
		}, "ended"},
		{"stopped, and the others are in a long step", true, func(_ *host, r *rank) { r.proc('T', 0) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 4)
			last := func(*rank, int64) {}
			if c.called {
				last = (*rank).graph
				h.long(nil)
			} else {
				h.step(nil)
			}
			h.step(map[int]func(*rank, int64){0: (*rank).graph, 1: (*rank).graph, 2: (*rank).graph, 3: last})
			c.gone(h, h.ranks[3])
			h.ranks = h.ranks[:3]
			h.tells(15, c.want, 3)
		})
	}
}

// TestAKernelOfAnEarlyStep lets the GPU of one rank not come to a collective of a job that has made a few steps, with
// nothing known to slow that GPU, and with less power: then it has three times as long as any.
func TestAKernelOfAnEarlyStep(t *testing.T) {
	t.Parallel()
	for _, power := range []bool{false, true} {
		h := newHost(t, 4)
		h.Observer.Evidence = func(string, int) Evidence { return Evidence{Power: power} }
		h.trains(25)
		if all, _ := h.look(); all[0].Steps != 0 {
			t.Fatalf("%d steps are counted", all[0].Steps)
		}
		waits := (*rank).hangs
		h.step(map[int]func(*rank, int64){0: waits, 1: waits, 2: waits, 3: func(r *rank, at int64) {
			r.hangs(at)
			r.put64(200, r.entered-1)
			r.put64(208, r.entered)
		}})
		hangs := h.wait(15)
		if named := len(hangs) == 1 && hangs[0].Reason == "kernel" && hangs[0].Rank == 3; named == power {
			t.Errorf("less power %v: after 15 s %+v", power, hangs)
		}
		if !power {
			continue
		}
		h.tells(160, "", 0)
		h.tells(15, "kernel", 3) // after 190 s
	}
}
