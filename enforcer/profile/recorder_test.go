package profile

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestWhatWasTimed: the time of a launch is what the same thread notes next, and kernels of one name are one.
func TestWhatWasTimed(t *testing.T) {
	r := &run{began: 1000, sessions: map[uint64]*session{}, tallies: map[kernel]*tally{}, spans: true}
	s := &session{timed: map[uint16]wire.Event{}, since: map[uint16]wire.Event{}}
	of := broker.Traced{Session: 1, GPUs: []string{"GPU-a", "GPU-b"}}
	note := func(kind wire.EventKind, id uint32, thread uint16, gpu uint8) {
		r.take(s, of, wire.Event{At: 2000, Kind: kind, ID: id, Thread: thread, GPU: gpu}, new(int))
	}
	for range 3 {
		note(wire.EventLaunch, 7, 1, 0)
		note(wire.EventLaunch, 8, 1, 1)
		note(wire.EventGraph, 9, 1, 0)
	}
	note(wire.EventTimed, 7, 2, 0)
	note(wire.EventTimed, 9, 3, 0)
	note(wire.EventTook, 100, 2, 0) // of 7
	note(wire.EventTook, 400, 3, 0) // of 9
	note(wire.EventTook, 999, 2, 0) // of nothing
	note(wire.EventTimed, 7, 2, 0)  // its end was lost
	note(wire.EventTimed, 7, 2, 0)
	note(wire.EventTook, 300, 2, 0)
	note(wire.EventTimed, 70, 2, 0) // launched before
	note(wire.EventTook, 999, 2, 0)
	r.tallies[kernel{2, 7, false, 0}] = &tally{gpu: "GPU-a", name: "kernel 00000007", launches: 1}
	all := r.kernels()
	fixture.If(t, math.Abs(all[0].Share-0.6) > 1e-9 || math.Abs(all[1].Share-0.4) > 1e-9, "the shares: %+v", all)
	all[0].Share, all[1].Share = 0, 0
	fixture.EqualSlices(t, all, []Kernel{
		{Name: "graph 00000009", Graph: true, GPU: "GPU-a", Launches: 3, Samples: 1, Mean: 4e-6, P99: 4e-6, Total: 12e-6},
		{Name: "kernel 00000007", GPU: "GPU-a", Launches: 4, Samples: 2, Mean: 2e-6, P99: 3e-6, Total: 8e-6},
		{Name: "kernel 00000008", GPU: "GPU-b", Launches: 3}}, "the kernels")
	for range 2 * mostSpans {
		note(wire.EventLaunch, 7, 1, 0)
	}
	fixture.Equal(t, len(r.all), mostSpans, "spans")
	for id := range uint32(2 * mostKernels) {
		note(wire.EventLaunch, id, 1, 0)
	}
	fixture.AtMost(t, len(r.tallies), mostKernels, "kernels")
	fixture.Equal(t, r.launches, 9+2*mostSpans+2*mostKernels, "launches")
	for i := range uint32(mostTimes + mostSamples) { // the last kernel has room for none
		note(wire.EventTimed, i/mostSamples, 2, 0)
		note(wire.EventTook, 1, 2, 0)
	}
	fixture.AtMost(t, r.times, mostTimes, "times of %d kernels", len(r.kernels()))
}

// TestProfilesAreBounded: a user has one of a process. Each switches the hook's timing on and off.
func TestProfilesAreBounded(t *testing.T) {
	r := Recorder{Time: func(int, time.Duration) {}, Look: func() {}, runs: map[int][]*run{1: {{uid: 7}}, 2: {{}}, 3: {{}}}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Profile(ended, 7, 1, time.Hour, false)
	fixture.Equal(t, err, ErrRuns, "another one of the same process")
	var asked []time.Duration
	r.Time = func(_ int, every time.Duration) { asked = append(asked, every) }
	p := fixture.Value(r.Profile(ended, 7, 4, time.Hour, false))(t)
	fixture.If(t, p.PID != 4 || len(asked) != 2 || asked[0] != every || asked[1] != 0 || len(r.runs) != 3, "%+v, %v", p, asked)
	synctest.Test(t, func(t *testing.T) { // sessions that begin later are asked, too
		asked = nil
		_ = fixture.Value(r.Profile(t.Context(), 7, 4, 5500*time.Millisecond, false))(t)
		fixture.Equal(t, len(asked), 7, "%v", asked)
	})
	glance := &run{glance: true, ended: make(chan struct{})} // makes way for a user
	r.runs[4] = []*run{glance}
	_ = fixture.Value(r.Profile(ended, 7, 4, time.Hour, false))(t)
	<-glance.ended
	_, err = r.Glance(ended, 1, time.Hour)
	runs, _ := r.runsBeside(4, glance)
	fixture.If(t, !errors.Is(err, ErrRuns) || runs, "a glance at a process that a user observes: %v", err)
	r.Time = func(_ int, every time.Duration) {
		r.Observe(broker.Traced{Session: 1, PID: 6, UID: 8, Trace: wire.TraceIn(timedTrace()), Ends: every > 0})
	}
	p = fixture.Value(r.Profile(t.Context(), 8, 6, time.Hour, false))(t) // until the process ends
	fixture.AtMost(t, p.Seconds, 60, "seconds")
}

// TestRootProfilesBesideAUser: the user's profile, which begins before and ends before, keeps root from nothing, nor the
// other way round.
func TestRootProfilesBesideAUser(t *testing.T) {
	for _, users := range [][2]uint32{{7, 0}, {0, 7}} {
		synctest.Test(t, func(t *testing.T) {
			timed, program := atomic.Int64{}, newNoted()
			r := Recorder{Time: func(_ int, every time.Duration) { timed.Store(int64(every)) }, Now: func() int64 { return 2e9 }}
			r.Look = func() { r.Observe(broker.Traced{Session: 1, PID: 6, UID: 7, Trace: wire.TraceIn(program)}) }
			told := make(chan Profile, 1)
			go func() { told <- fixture.Value(r.Profile(t.Context(), users[0], 6, 3500*time.Millisecond, false))(t) }()
			synctest.Wait()
			_, err := r.Profile(t.Context(), users[0], 6, time.Second, false)
			fixture.Equal(t, err, ErrRuns, "another one of the same user")
			go func() {
				time.Sleep(4 * time.Second)
				fixture.Equal(t, timed.Load(), int64(every), "once the first one has ended")
			}()
			second := fixture.Value(r.Profile(t.Context(), users[1], 6, 5*time.Second, false))(t)
			fixture.If(t, second.Launches != 1 || (<-told).Launches != 1 || timed.Load() != 0 || len(r.runs) != 0, "%+v, %v, %v", second, timed.Load(), r.runs)
		})
	}
}

// newNoted returns a trace with a launch.
func newNoted() []byte {
	trace := timedTrace()
	binary.NativeEndian.PutUint64(trace, 16)
	binary.NativeEndian.PutUint64(trace[len(trace)-wire.EventsKept*16:], 2e9)
	trace[len(trace)-wire.EventsKept*16+12] = byte(wire.EventLaunch)
	return trace
}

// TestAPIDOfAnother: a process that broke its clock is not seen to end, and its PID may become another user's.
func TestAPIDOfAnother(t *testing.T) {
	trace := newNoted()
	r := Recorder{Look: func() {}, Now: func() int64 { return 2e9 }}
	for uid, want := range map[uint32]uint64{7: 0, 8: 1, 0: 1} { // the one who asked
		ended, cancel := context.WithCancel(t.Context())
		r.Time = func(_ int, every time.Duration) {
			r.Observe(broker.Traced{Session: 1, PID: 6, UID: uid, Trace: wire.TraceIn(make([]byte, wire.TraceSize)), Ends: every > 0})
			r.Observe(broker.Traced{Session: 2, PID: 6, UID: 8, Trace: wire.TraceIn(trace)})
			cancel()
		}
		p := fixture.Value(r.Profile(ended, uid, 6, time.Hour, false))(t)
		fixture.Equal(t, p.Launches, want, "launches of user 8 that user %d is told:", uid)
	}
}

// timedTrace returns an empty trace whose clock is known.
func timedTrace() []byte {
	trace := make([]byte, wire.TraceSize)
	binary.NativeEndian.PutUint32(trace[64:], 2)
	for i, v := range []int64{1e9, 1e9, 2e9, 2e9} {
		binary.NativeEndian.PutUint64(trace[72+8*i:], uint64(v))
	}
	return trace
}
