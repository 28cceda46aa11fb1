package health

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"gpusteward/collectors"
	"gpusteward/collectors/faults"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// set returns t as if the wall clock had been set to at before t was read; the monotonic reading stays the same.
// (Package time documents that bits 30 to 62 of a Time's first word are the seconds since 1885.)
func set(t, at time.Time) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(at.Sub(t.Round(0))/time.Second) << 30
	return t
}

var (
	y1970 = time.Date(1970, 1, 1, 0, 0, 30, 0, time.UTC)
	y2026 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
)

// lately reports whether a time is within the last ten minutes, by the wall clock alone.
func lately(t, now time.Time) bool {
	ago := now.Round(0).Sub(t.Round(0))
	return ago >= 0 && ago < 10*time.Minute
}

// dates checks that all times in an engine's reports are recent.
func (w *world) dates() {
	w.t.Helper()
	all := map[string]time.Time{}
	for _, a := range w.engine.Alerts(nil) {
		all["alert "+a.Labels["alertname"]] = a.Starts
	}
	for _, f := range w.engine.Findings() {
		all["finding "+f.Check] = f.Since
	}
	s := fixture.Value(w.engine.Save("same"))(w.t)
	for _, f := range s.Faults {
		all["fault "+f.Check] = f.Since
		for i, l := range f.Levels {
			all[fmt.Sprint("level ", i, f.Check)], all[fmt.Sprint("bad ", i, f.Check)] = l.Since, l.Bad
		}
	}
	for _, e := range s.Incidents {
		all["first "+e.ID], all["last "+e.ID], all["time "+e.ID] = e.First, e.Last, e.Time
	}
	for uuid, h := range w.engine.metrics.Save(w.now).GPUs {
		all["seen "+uuid] = h.Seen
		for _, at := range h.Rows.Times {
			all["rows "+uuid] = time.UnixMilli(int64(at * 1000))
		}
		if s := h.Faults[incident.HardwareFault]; s != nil {
			all["score "+uuid], all["scored "+uuid] = s.Last, s.Score.At
		}
	}
	fixture.AtLeast(w.t, len(all), 12, "only … times are known")
	for what, at := range all {
		fixture.If(w.t, !lately(at, w.now), "at %v: %s is of %v", w.now, what, at)
	}
}

// TestClockSetWhileRunning has a clock that begins in 1970, is set,
// and is wrong again. Another clock goes the other way.
func TestClockSetWhileRunning(t *testing.T) {
	t.Parallel()
	samples := func(margin float64) []collectors.Sample {
		return []collectors.Sample{on("0", collectors.Up, 1), hotAt(margin),
			on("0", faults.RemappedRows, 3, "correctable"), {Metric: collectors.DriverUp, Value: 1}}
	}
	for _, years := range [][]time.Time{{y1970, y2026, y1970, y2026}, {y2026, y1970, y2026}} {
		w := newWorld(t)
		w.now = set(time.Now(), years[0])
		w.engine = NewEngine(append(Checks(), hotCheck), w.now)
		w.steps(6, samples(20)...)
		w.step(step, []incident.Event{happened("a", "xid", 79, "0", w.now)}, samples(20)...)
		w.steps(6, samples(-1)...)
		before := w.failing()
		if !strings.Contains(before, "gpu_lost gpu=0 failed") || !strings.Contains(before, "hot gpu=0 degraded") {
			t.Fatalf("%s", before)
		}
		starts := w.engine.Alerts(nil)[0].Starts
		for _, year := range years[1:] {
			w.now = set(w.now, year)
			if changes := w.steps(3, samples(-1)...); len(changes) > 0 || w.failing() != before {
				t.Errorf("set to %v: %+v, %s; want %s", year, changes, w.failing(), before)
			}
			if now := w.engine.Alerts(nil)[0].Starts; !now.Equal(starts) {
				t.Errorf("an alert of %v is taken for one of %v, so it is told anew", starts, now)
			}
			w.dates()
		}
		w.steps(31, samples(20)...)
		fixture.Equal(t, strings.Contains(w.failing(), "hot"), false, "five minutes after it was cool: %s", w.failing())
		fixture.If(t, len(w.engine.metrics.Save(w.now).GPUs["GPU-0"].Rows.Times) == 0,
			"the trend of spare rows did not go on")
	}
}

// TestStateOfAnotherClock loads a state on a host whose clock is a year off from the clock that wrote it.
func TestStateOfAnotherClock(t *testing.T) {
	t.Parallel()
	up := []collectors.Sample{on("0", collectors.Up, 1), on("0", faults.RemappedRows, 3, "correctable"),
		{Metric: collectors.DriverUp, Value: 1}}
	for name, years := range map[string][2]time.Time{"written in 1970": {y1970, y2026}, "read in 1970": {y2026, y1970},
		"of tomorrow": {y2026.Add(24 * time.Hour), y2026}} {
		w := newWorld(t)
		w.now = set(time.Now(), years[0])
		w.engine = NewEngine(append(Checks(), hotCheck), w.now)
		w.steps(3, up...)
		w.step(step, []incident.Event{happened("a", "xid", 79, "0", w.now)}, up...)
		w.steps(3, append(up, hotAt(-1))...)
		w.now = set(w.now, years[1])
		// JSON has no monotonic readings, so only the wall clock is left.
		w.restart("same")
		w.steps(1, append(up, hotAt(20))...)
		if f := w.failing(); !strings.Contains(f, "hot gpu=0") || !strings.Contains(f, "gpu_lost gpu=0 failed") {
			t.Errorf("%s: %s", name, f)
		}
		w.dates()
		fixture.Equal(t, len(w.engine.memory.incidents), 1, "%s: incidents remembered", name)
		if w.steps(31, append(up, hotAt(20))...); strings.Contains(w.failing(), "hot") {
			t.Errorf("%s: five minutes after it was cool: %s", name, w.failing())
		}
	}
}

func TestRestoring(t *testing.T) {
	hour := time.Hour
	for name, c := range map[string]struct{ saved, now, of, want time.Time }{
		"as it was written":  {y2026.Add(-hour), y2026, y2026.Add(-2 * hour), y2026.Add(-2 * hour)},
		"never":              {y2026, y2026, time.Time{}, time.Time{}},
		"the clock was back": {y2026, y1970, y2026.Add(-hour), y1970.Add(-hour)},
		"it was not set yet": {y1970, y2026, y1970.Add(-hour), y2026.Add(-hour)},
		"of the future":      {y2026.Add(-hour), y2026, y2026.Add(hour), y2026},
		"no word when":       {time.Time{}, y2026, y2026.Add(-hour), y2026.Add(-hour)},
	} {
		got := restoring(c.saved, c.now)(c.of)
		fixture.If(t, !got.Equal(c.want), "%s: %v, want %v", name, got, c.want)
	}
}
