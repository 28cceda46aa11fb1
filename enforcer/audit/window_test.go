package audit

import (
	"testing"
	"time"
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
		if !ok || !near(got.least, c.least) || !near(got.most, c.most) {
			t.Errorf("at %v s: %v to %v, want %v to %v", c.at, got.least, got.most, c.least, c.most)
		}
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
		if ok != (c.from >= 0) || ok && (from.at.Sub(start) != time.Duration(c.from)*time.Second ||
			to.at.Sub(start) != time.Duration(c.at)*time.Second) {
			t.Errorf("at %d s: a window from %v, %v; want %d s", c.at, from.at, ok, c.from)
		}
	}
}
