package jobs

import (
	"strings"
	"testing"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A seat is a rank's in a communicator besides that of all: what it has called there, and how far its GPU is.
type seat struct {
	id, rank, ranks                int
	entered, ended, begun, unbegun uint64
}

// A pose is how a rank stands: its seats, its last call, its state, and whether it has called the last collective of all.
type pose struct {
	seats []seat
	last  wire.EventKind
	state byte
	calls bool
	held  bool // another thread, by its quota
	peers []wire.Peer
}

// takes lets a rank go from its steps to where it stands.
func (p pose) takes(r *rank, at int64) {
	r.launches(at)
	r.put64(128+32, r.entered)
	r.put64(128+72, r.entered)
	if p.calls {
		r.enter(at+20e6, 1<<20)
		r.put64(128+72, r.entered)
	}
	for i, s := range p.seats {
		for j, v := range []uint64{uint64(s.id), uint64(s.rank) | uint64(s.ranks)<<32, s.entered, uint64(at), s.ended} {
			r.put64(256+128*i+8*j, v)
		}
		r.put64(256+128*i+72, s.begun)
		r.put64(256+128*i+80, s.unbegun)
	}
	for i, to := range p.peers {
		r.exchanges(i, to)
	}
	if p.held {
		r.by(2, at+24e6, wire.EventHeld, 0)
	}
	r.note(at+25e6, p.last, 0)
	r.proc(p.state, 0)
}

// placed returns the hangs once it is known where they stand.
func (h *host) placed() []wire.HangStats {
	for {
		if _, hangs := h.look(); len(hangs) == 0 || hangs[0].Where != "" {
			return hangs
		}
	}
}

// TestDeadlocks tells ranks that wait for each other in different calls, and nobody who waits for one that is slow.
func TestDeadlocks(t *testing.T) {
	t.Parallel()
	const a, b, c = 901, 902, 903
	waits := func(seats ...seat) pose { return pose{seats: seats, last: wire.EventWait, state: 'R'} }
	of := func(id, rank int) seat { return seat{id, rank, 2, 4, 4, 4, 0} }     // has called as much as was done
	in := func(id, rank int) seat { return seat{id, rank, 2, 5, 4, 5, 0} }     // its GPU is in another call
	called := func(id, rank int) seat { return seat{id, rank, 2, 5, 4, 4, 0} } // it is not known whether it is
	before := func(id, rank int) seat { return seat{id, rank, 3, 5, 4, 4, 5} } // its GPU has not come to that
	with := func(p pose, change func(p *pose)) pose { change(&p); return p }
	first, second := waits(in(a, 0), of(b, 0)), waits(of(a, 1), in(b, 1))
	for _, c := range []struct {
		name  string
		ranks []pose
		where string // empty: no deadlock
	}{
		{"two ranks in two communicators", []pose{first, second}, "rank 1: "},
		{"few calls are measured", []pose{waits(called(a, 0), of(b, 0)), waits(of(a, 1), called(b, 1))}, "rank 1: "},
		{"their GPUs, which come to the calls in another order",
			[]pose{waits(in(a, 0), before(b, 0)), waits(before(a, 1), in(b, 1))}, "rank 1: "},
		{"three ranks in three communicators", []pose{waits(in(a, 0), of(c, 1)), waits(of(a, 1), in(b, 0)),
			waits(of(b, 1), in(c, 0))}, "rank 1: unknown; rank 2: "},
		{"others wait for them in that of all", []pose{first, with(second, func(p *pose) { p.calls = true }),
			with(waits(), func(p *pose) { p.calls = true })}, "rank 1: "},
		{"in their first calls, in which NCCL looks for the other rank", []pose{
			with(waits(seat{a, 0, 2, 1, 0, 0, 0}, seat{b, 0, 2, 0, 0, 0, 0}), func(p *pose) { p.last = wire.EventCollective }),
			with(waits(seat{a, 1, 2, 0, 0, 0, 0}, seat{b, 1, 2, 1, 0, 0, 0}), func(p *pose) { p.last = wire.EventCollective })},
			"rank 1: "},
		{"both send, and neither receives", []pose{
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 1, Sent: 8, Received: 7, Inside: true}} }),
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 0, Sent: 8, Received: 7, Inside: true}} })},
			"rank 1: "},
		{"one is in a collective, and the other one receives", []pose{
			with(waits(), func(p *pose) { p.calls, p.peers = true, []wire.Peer{{Rank: 1, Sent: 7}} }),
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 0, Received: 8, Inside: true}} })}, "rank 1: "},

		{"the second one sleeps", []pose{first, with(second, func(p *pose) { p.last, p.state = wire.EventLaunch, 'S' })}, ""},
		{"the second one is held by its quota", []pose{first, with(second, func(p *pose) { p.held = true })}, ""},
		{"a debugger holds the second one", []pose{first, with(second, func(p *pose) { p.state = 't' })}, ""},
		{"the second one is stopped", []pose{first, with(second, func(p *pose) { p.state = 'T' })}, ""},
		{"the second one waits for a third one, whose kernel is long",
			[]pose{waits(in(a, 0)), waits(of(a, 1), in(b, 0)), waits(of(b, 1))}, ""},
		{"the first one may wait for a rank on another host", []pose{
			with(first, func(p *pose) { p.seats = append(p.seats, called(c, 0)) }), second}, ""},
		{"all are in the same call", []pose{waits(in(a, 0)), waits(in(a, 1))}, ""},
		{"the second one may be done with its send to the first one, and waits for the third one", []pose{
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 1, Sent: 8, Received: 7, Inside: true}} }),
			with(waits(), func(p *pose) {
				p.peers = []wire.Peer{{Rank: 0, Sent: 8, Received: 7}, {Rank: 2, Received: 3, Inside: true}}
			}),
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 1, Sent: 2}} })}, ""},
		{"both are in the same exchange, and one has called the next one", []pose{
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 1, Sent: 8, Received: 7, Inside: true, Before: true}} }),
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 0, Sent: 7, Received: 7, Inside: true, Before: true}} })}, ""},
		{"a send is behind, and nobody is in it", []pose{
			with(waits(), func(p *pose) { p.calls, p.peers = true, []wire.Peer{{Rank: 1, Sent: 7}} }),
			with(waits(), func(p *pose) { p.peers = []wire.Peer{{Rank: 0, Received: 8}} })}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := stepping(t, len(c.ranks))
			last := map[int]func(*rank, int64){}
			for i, p := range c.ranks {
				last[i] = p.takes
			}
			h.step(last)
			h.Observer.Held = func(_, workload string) bool { return workload == "job" }
			h.tells(30, "", 0) // we have it stand still
			h.Observer.Held = nil
			h.tells(8, "", 0)
			if c.where == "" {
				for _, told := range h.wait(60) {
					if told.Reason == "deadlock" {
						t.Errorf("%+v", told)
					}
				}
				return
			}
			h.tells(8, "deadlock", 0)
			told := h.placed()
			if len(told) != 1 || !strings.HasPrefix(told[0].Where, c.where) || told[0].Waiting != len(c.ranks) {
				t.Errorf("%+v, want the places of the others, %q", told, c.where)
			}
			h.trains(20)
			_, after := h.look()
			fixture.Equal(t, len(after), 0, "hangs of those that go on")
		})
	}
}
