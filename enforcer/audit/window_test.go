package audit

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

func TestChargesBetweenLooks(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	var l looks
	for i, charged := range []float64{0, 1, 1, 1.5, 1.6} {
		l = l.add(look{at: at(float64(i)), charged: charged})
	}
	for _, c := range []struct{ at, least, most float64 }{
		{0, 0, 0}, {1, 1, 1}, {3, 1.5, 1.5}, // exact at each reading
		{.4, .4, .4},    // charged all the time
		{1.4, 1, 1},     // never
		{2.2, 1, 1.2},   // charged half of the time, which may be this half
		{2.8, 1.3, 1.5}, // or this half
		{4.5, 1.6, 2.1}, // no reading yet
	} {
		got, _, ok := l.at(at(c.at))
		fixture.If(t, !ok || !near(got.least, c.least) || !near(got.most, c.most),
			"at %v s: %v to %v, want %v to %v", c.at, got.least, got.most, c.least, c.most)
	}
	if _, _, ok := l.at(at(-1)); ok {
		t.Error("known before the first look")
	}
}

func TestWindowsHaveNoHoles(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var r readings
	for _, c := range []struct {
		at   int // seconds
		from int // begin of the window; -1: none
	}{{0, -1}, {5, -1}, {9, -1}, {10, 0}, {15, 5}, {20, 10}, {50, 20}, {81, -1}, {92, 81}} {
		r = r.add(0, reading{at: start.Add(time.Duration(c.at) * time.Second)})
		from, to, ok := r.window(0)
		fixture.If(t, ok != (c.from >= 0) || ok && (from.at.Sub(start) != time.Duration(c.from)*time.Second ||
			to.at.Sub(start) != time.Duration(c.at)*time.Second),
			"at %d s: a window from %v, %v; want %d s", c.at, from.at, ok, c.from)
	}
}

// TestExcessInEachReading holds that memory exceeds the books only if it did in
// all of the last readings, and was not given back since the driver was asked.
func TestExcessInEachReading(t *testing.T) {
	for low := range excesses {
		var p auditedProcess
		p.remember(0, true)
		has := func(bytes uint64) uint64 {
			return p.above(&collectors.DeviceProcess{Memory: contextBytes + bytes}, true)
		}
		for range excesses - 1 {
			has(gib)
		}
		fixture.Need(t, has(gib), gib, "after %d readings it is … bytes above the books", excesses)
		for i := range excesses {
			bytes := uint64(gib)
			if i == low {
				bytes = 0
			}
			if got := has(bytes); i >= low && got != 0 {
				t.Errorf("%d readings after one within the books it is %d bytes above them, want 0", i-low, got)
			}
		}
		p = auditedProcess{}
		for i := range excesses {
			p.remember(gib, true)
			p.remember(0, true)
			fixture.Equal(t, has(gib), 0, "reading %d of memory that was given back: … bytes above the books", i)
		}
	}
}

// TestNoReadingInTheDark holds that no reading is taken while samples are not
// added up: the time would appear in the next window.
func TestNoReadingInTheDark(t *testing.T) {
	g := auditedGPU{dark: true, sampled: time.Unix(1e9, 0)}
	g.sample(&Books{})
	fixture.If(t, !g.read.IsZero(), "a reading was taken at %v", g.read)
	g.dark = false
	g.sample(&Books{})
	fixture.If(t, !g.read.Equal(g.sampled), "the reading was taken at %v, want %v", g.read, g.sampled)
}
