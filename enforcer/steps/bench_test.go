package steps

import (
	"runtime"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// BenchmarkFeed is the cost of an event while a step is known, and while it is
// searched for: in work without steps, and with more signs than room.
func BenchmarkFeed(b *testing.B) {
	w := newWorld(1)
	for range 600 {
		w.step(func() {
			w.copy(65536)
			small.train(w)
			w.item()
		})
	}
	random := newWorld(2)
	for range 100000 {
		random.note(wire.EventLaunch, random.Uint32N(1000)*0x9e3779b1)
		random.spend(5 * us)
	}
	tight := newWorld(3) // too fast for steps
	for range 30000 {
		for id := range uint32(3) {
			tight.now += 2 * us
			tight.note(wire.EventLaunch, 1000*id)
		}
	}
	for name, c := range map[string]struct {
		before, events []wire.Event
	}{
		"known":     {w.events[:len(w.events)/2], w.events[len(w.events)/2:]},
		"searching": {nil, random.events},
		"tight":     {nil, tight.events},
		"learning":  {nil, w.events[:len(w.events)/3]},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var f Finder
			f.Feed(c.before)
			if (f.followed != nil) != (name == "known") {
				b.Fatal("it follows a rhythm, or none, against expectation")
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := cpuTime(b)
			for b.Loop() {
				if c.before == nil {
					f = Finder{}
				}
				f.Feed(c.events) // whose times go back, each time
			}
			b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N)/float64(len(c.events)), "cpu-ns/event")
		})
	}
}

// cpuTime is what the thread used, ns: other programs may have the processor.
func cpuTime(b *testing.B) int64 {
	const thread = 1
	var u syscall.Rusage
	fixture.Must(b, syscall.Getrusage(thread, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
