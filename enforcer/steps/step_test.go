package steps

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// script is a world without noise: what it costs is what the test says.
type script struct {
	now    int64
	thread uint16
	events []wire.Event
}

func (s *script) call(after time.Duration, kind wire.EventKind, id uint32) {
	s.now += int64(after)
	s.events = append(s.events, wire.Event{At: s.now, Kind: kind, ID: id, Thread: s.thread})
}

// training is a step of 24 ms of all kinds of calls.
func (s *script) training() {
	s.call(4*time.Millisecond, wire.EventCopying, 100) // of the loader
	s.call(2*time.Millisecond, wire.EventCopied, 100)
	for i := range uint32(20) {
		s.call(100*time.Microsecond, wire.EventLaunch, 7*i)
	}
	s.call(0, wire.EventBusy, 5000)
	s.call(500*time.Microsecond, wire.EventHeld, 0)
	s.call(3*time.Millisecond, wire.EventReleased, 0)
	s.call(500*time.Microsecond, wire.EventCollective, 77)
	s.call(500*time.Microsecond, wire.EventGraph, 78)
	s.call(0, wire.EventAlloc, 1)
	s.call(200*time.Microsecond, wire.EventCopy, 28)
	s.call(300*time.Microsecond, wire.EventWait, 0)
	s.call(2*time.Millisecond, wire.EventCollected, 1500)
	s.call(9*time.Millisecond, wire.EventWaited, 0)
}

// trained returns a finder that has seen so many steps, and their script, which goes on.
func trained(steps int) (f *Finder, s *script) {
	f, s = new(Finder), &script{now: 1e9}
	for range steps {
		s.training()
	}
	f.Feed(s.events)
	s.events = nil
	return f, s
}

func TestParts(t *testing.T) {
	f, s := trained(40)
	all := f.Steps(0, nil)
	if len(all) < 20 || f.Finished() != uint64(len(all)) {
		t.Fatalf("%d steps of 40, finished %d", len(all), f.Finished())
	}
	for _, got := range all {
		want := Step{Begin: got.Begin, End: got.Begin + 24e6, Waiting: 11000, Copying: 2000, Held: 3000, Host: 4000,
			Launches: 20, Graphs: 1, Collectives: 1, Allocating: 200, Copied: 128, Busy: 5000, Collecting: 1500, Allocs: 1,
			Pattern: got.Pattern}
		if got != want || got.Launching() != 4*time.Millisecond || (s.now-got.End)%24e6 != 0 || got.Interrupted() {
			t.Errorf("%+v, launching %v, ends %v before a wait", got, got.Launching(), (s.now-got.End)%24e6)
		}
	}
	fixture.Equal(t, unsafe.Sizeof(Step{}), 64, "a step has … bytes")
	fixture.AtMost(t, unsafe.Sizeof(*f), 64<<10, "a finder has … bytes")
}

// Numbers that do not fit are cut, not wrapped.
func TestPartsAreCapped(t *testing.T) {
	var m meter
	m.at = 1 << 50
	m.parts[waiting] = 1 << 50
	m.count[wire.EventAlloc] = 1 << 20
	m.sum[wire.EventCopy] = 1 << 40
	got := m.step(1<<50+7, 1, 0)
	if got.Begin != 7 || got.Waiting != 1<<32-1 || got.Allocs != 1<<16-1 || got.Copied != 1<<32-1 || got.Launching() < 0 {
		t.Errorf("%+v", got)
	}
}

func TestStatus(t *testing.T) {
	f, s := trained(60)
	last := s.now
	got := f.Status(last + 1e9)
	fixture.If(t, !got.Stepping || got.Median != 24*time.Millisecond || got.Last != last || got.Idle != time.Second ||
		len(got.Waits) != 0 || got.Since <= 1e9 || got.Since >= last,
		"%+v, last at %d", got, last)
	s.thread = 3
	s.call(time.Second, wire.EventWait, uint32(wire.WaitEvent))
	s.thread = 4
	s.call(0, wire.EventHeld, 0)
	f.Feed(s.events)
	want := []Wait{{Thread: 3, For: wire.EventWait, ID: uint32(wire.WaitEvent), Since: s.now},
		{Thread: 4, For: wire.EventHeld, Since: s.now}}
	fixture.EqualSlices(t, f.Status(s.now+1e9).Waits, want, "status")
	s.events = nil
	s.call(0, wire.EventReleased, 0)
	f.Feed(s.events)
	if got := f.Status(s.now).Waits; len(got) != 1 || got[0].Thread != 3 {
		t.Errorf("%+v", got)
	}
	f.Lost()
	fixture.Equal(t, len(f.Status(s.now).Waits), 0, "a thread waits whose events were lost")
	var none Finder
	if got := none.Status(1); got.Stepping || got.Median != 0 || got.Idle != 0 {
		t.Errorf("%+v", got)
	}
}

// Evaluations lie between steps. The steps are in phase again three later at most.
// There are none any more if something else goes on for long.
func TestInterruption(t *testing.T) {
	t.Parallel()
	var f Finder
	w := newWorld(1)
	train := func(n int) {
		for range n {
			w.step(func() {
				w.copy(1 << 16)
				small.train(w)
				w.item()
			})
		}
	}
	train(60)
	for range 5 {
		evaluate(w, small, 50)
		resumed := len(w.truth)
		train(10)
		f.Feed(w.events)
		w.events = nil
		ended := 0
		for _, s := range f.Steps(0, nil) {
			if s.End > w.truth[resumed+3].begin && !s.Interrupted() {
				ended++
			}
		}
		fixture.Equal(t, ended, 7, "… steps of the last 7 ended")
	}
	if s := f.Status(w.now); !s.Stepping || s.Pattern != 1 || s.Outside < 4*50*time.Millisecond {
		t.Errorf("%+v", s)
	}
	for range 4000 {
		w.launch(string(rune('a'+w.IntN(20))), 9*us)
		w.launch(string(rune('A'+w.IntN(20))), 9*us)
	}
	f.Feed(w.events)
	fixture.If(t, !f.Status(w.now).Stepping, "a short interruption counts as the end")
	for range 100000 {
		w.launch(string(rune('a'+w.IntN(40))), 9*us)
	}
	w.events = w.events[8000:]
	f.Feed(w.events)
	fixture.If(t, f.Status(w.now).Stepping, "it steps for ever")
}

// A step in which events were lost is none; those after it are as before.
func TestLost(t *testing.T) {
	f, s := trained(60)
	before := f.Finished()
	end := s.now
	for range 10 {
		s.training()
	}
	f.Lost()
	f.Feed(s.events[len(s.events)/5:]) // two whole steps are missing
	all := f.Steps(before, nil)
	fixture.If(t, len(all) < 7 || len(all) > 8, "%d steps", len(all))
	for _, step := range all {
		fixture.If(t, step.Begin < end || step.Wall() != 24*time.Millisecond, "%+v", step)
	}
}

// Steps that nobody asked for in time are forgotten.
func TestRing(t *testing.T) {
	f, s := trained(600)
	all := f.Steps(0, nil)
	if len(all) != 256 || f.Finished() < 560 || all[255].End != s.now || all[0].End != s.now-255*24e6 {
		t.Errorf("%d of %d steps", len(all), f.Finished())
	}
	fixture.EqualSlices(t, f.Steps(f.Finished()-3, nil), all[253:], "the last three")
	fixture.EqualSlices(t, f.Steps(f.Finished()+9, nil), nil, "of the future")
}

// FuzzFeed: the finder neither panics nor reports impossible steps, whatever a process writes.
func FuzzFeed(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 15, 300, 5000} {
		raw := make([]byte, n)
		for i := range raw {
			raw[i] = byte(r.Uint32())
		}
		f.Add(raw, uint8(n))
	}
	s := script{now: 1}
	for range 20 {
		s.training()
	}
	var raw []byte
	for _, e := range s.events {
		raw = append(raw, byte(e.Kind), byte(e.ID), byte(e.Thread))
		raw = binary.LittleEndian.AppendUint32(raw, 100000)
	}
	f.Add(raw, uint8(4))
	f.Fuzz(func(t *testing.T, raw []byte, repeat uint8) {
		var events []wire.Event
		at := int64(0)
		for ; len(raw) >= 7; raw = raw[7:] {
			at += int64(int32(binary.LittleEndian.Uint32(raw[3:])))
			if raw[0]&0xf0 == 0xf0 {
				at <<= raw[0] & 15
			}
			events = append(events, wire.Event{At: at, Kind: wire.EventKind(raw[0] & 31), ID: uint32(raw[1]),
				Thread: uint16(raw[2]) << (raw[1] & 8)})
		}
		var finder Finder
		for range repeat % 16 {
			finder.Feed(events)
			if repeat&1 != 0 {
				finder.Lost()
			}
			sound(t, &finder)
		}
	})
}

func sound(t *testing.T, f *Finder) {
	t.Helper()
	for _, s := range f.Steps(0, nil) {
		sum := s.Waiting.Duration() + s.Copying.Duration() + s.Held.Duration() + s.Host.Duration() + s.Launching()
		if s.End < s.Begin || sum > s.Wall() || sum < s.Wall()-4*time.Microsecond && s.Wall() < time.Hour {
			t.Fatalf("%+v: the parts are %v", s, sum)
		}
	}
	s := f.Status(f.all.at)
	fixture.Stop(t, s.Median < 0 || s.Idle < 0 || len(s.Waits) > threads, "%+v", s)
}

// TestGarbage: random events and times, and floods of events.
func TestGarbage(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 9))
		var f Finder
		events := make([]wire.Event, 5000)
		for range 20 {
			at := r.Int64()
			for i := range events {
				if r.IntN(500) == 0 {
					at = int64(r.Uint64())
				}
				at += r.Int64N(1 + int64(seed)*1000)
				events[i] = wire.Event{At: at, ID: r.Uint32N(1 << (seed + 1)), Kind: wire.EventKind(r.IntN(20)),
					Thread: uint16(r.Uint32N(1 << (seed % 16)))}
			}
			f.Feed(events)
			sound(t, &f)
		}
		fixture.AtMost(t, f.Finished(), 0, "seed %d: … steps", seed)
	}
}

// The median is that of the last 32 steps.
func TestMedian(t *testing.T) {
	f, s := trained(60)
	for i := range 32 { // of 24 ms and up to 31 ms more
		s.training()
		s.now += int64(i*7%32) * ms
	}
	s.training()
	f.Feed(s.events)
	got := f.Status(s.now).Median
	fixture.If(t, got < 39*time.Millisecond || got > 41*time.Millisecond, "%v", got)
}

// A long interruption becomes a pattern of its own, and is withdrawn or left when the first one returns.
func TestResume(t *testing.T) {
	t.Parallel()
	for batches, withdrawn := range map[int]bool{600: true, 1100: false} {
		var f Finder
		w := newWorld(1)
		train := func(n int) (began int64) {
			began = w.now
			for range n {
				w.copy(1 << 16)
				small.train(w)
				w.item()
			}
			return began
		}
		train(60)
		evaluate(w, small, batches)
		f.Feed(w.events)
		fixture.Equal(t, f.Status(w.now).Pattern, 2, "the pattern after %d batches", batches)
		before := f.Finished()
		w.events = nil
		began := train(6)
		f.Feed(w.events)
		all := f.Steps(before-10, nil)
		if s := f.Status(w.now); s.Pattern != 3 || len(all) < 4 || all[len(all)-1].Begin < began ||
			(len(all) < 10) != withdrawn {
			t.Errorf("after %d batches and 6 steps: %d steps, %+v", batches, len(all), s)
		}
	}
}

// If the pause that made a mark the best is gone, another place is better.
func TestTurn(t *testing.T) {
	var f Finder
	s := script{now: 1e9}
	for i := range 120 {
		for k := range uint32(30) {
			pause := 100 * time.Microsecond
			switch {
			case k == 20 && i < 30:
				pause = 900 * time.Microsecond
			case k == 7:
				pause = 500 * time.Microsecond
			}
			s.call(pause, wire.EventLaunch, 7*k)
		}
		if i == 30 || i == 119 {
			f.Feed(s.events)
			s.events = nil
			left := s.now - f.Status(s.now).Last // from the middle of the pause to the last call of a step
			fixture.Equal(t, left, map[int]int64{30: 950e3, 119: 2450e3}[i], "step %d: ns", i)
		}
	}
}

// A step ends after the wait in it, in the middle of a short pause between two calls, and
// at the beginning of a long one. After lost events one begins with the first call.
func TestEnd(t *testing.T) {
	for name, c := range map[string]struct {
		pause time.Duration
		wait  bool
		after time.Duration // the last call of the step
	}{
		"short pause":          {pause: 600 * time.Microsecond, after: 300 * time.Microsecond},
		"long pause":           {pause: 9 * time.Millisecond, after: time.Millisecond},
		"pause after a wait":   {pause: 600 * time.Microsecond, wait: true},
		"no pause after waits": {wait: true},
	} {
		var f Finder
		s := script{now: 1e9}
		for range 60 {
			s.now += int64(c.pause)
			for k := range uint32(20) {
				s.call(20*time.Microsecond, wire.EventLaunch, 7*k)
			}
			if c.wait {
				s.call(0, wire.EventWait, 0)
				s.call(time.Millisecond, wire.EventWaited, 0)
			}
		}
		last := s.now
		s.now += int64(c.pause)
		for k := range uint32(5) { // a step is known to have ended a little later
			s.call(20*time.Microsecond, wire.EventLaunch, 7*k)
		}
		f.Feed(s.events)
		got := time.Duration(f.Status(s.now).Last - last)
		if f.Finished() == 0 || got.Truncate(50*time.Microsecond) != c.after {
			t.Errorf("%s: the last of %d steps ends %v after its last call", name, f.Finished(), got)
		}
		f.Lost()
		s.events = nil
		s.now += 1e9
		resumed := s.now
		for range 2 {
			for k := range uint32(20) {
				s.call(20*time.Microsecond, wire.EventLaunch, 7*k)
			}
		}
		before := f.Finished()
		f.Feed(s.events)
		for _, step := range f.Steps(before, nil) {
			fixture.AtLeast(t, step.Begin, resumed,
				"%s: a step begins %v before the loss ended", name, time.Duration(resumed-step.Begin))
		}
	}
}

// A loop of one thread of which the host reads a little, and which gets no data, may be a
// long answer of a language model. It is a training if it is longer than any. So may one be
// of which the host reads again and again, but not one of which it reads several numbers.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		given uint32
		reads int // after each piece of the work
		piece uint32
		late  bool
	}{
		{0, 1, 20, true}, {little, 1, 20, true}, {little + 1, 1, 20, false}, {little + 1, 4, 20, false}, {little + 1, 1, 5, true},
	} {
		var f Finder
		s := script{now: 1e9}
		step := func() {
			s.call(50*time.Microsecond, wire.EventCopy, c.given)
			for k := range uint32(20) {
				s.call(20*time.Microsecond, wire.EventLaunch, 7*k)
				for range c.reads {
					if k%c.piece == c.piece-1 {
						s.call(10*time.Microsecond, wire.EventCopy, 1)
						s.call(10*time.Microsecond, wire.EventWait, 0)
						s.call(time.Millisecond, wire.EventWaited, 0)
					}
				}
			}
		}
		steps := 0
		for ; f.Finished() == 0 && steps < 2*answer; steps++ {
			step()
			f.Feed(s.events)
			s.events = nil
		}
		for range 100 {
			step()
		}
		f.Feed(s.events)
		if late := steps > 20; late != c.late || steps > answer+20 || !f.Status(s.now).Stepping {
			t.Errorf("%+v: found after %d steps", c, steps)
		}
	}
}
