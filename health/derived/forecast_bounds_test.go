package derived

import (
	"fmt"
	"math"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// trending returns a series with a first value and a rise for each step.
func trending(first float64, by ...float64) *trend {
	t := &trend{every: time.Second}
	at := birth
	t.add(at, first)
	for _, v := range by {
		at, first = at.Add(time.Second), first+v
		t.add(at, first)
	}
	return t
}

// repeated returns n equal steps of a series.
func repeated(n int, by float64) (all []float64) {
	for range n {
		all = append(all, by)
	}
	return all
}

// TestTrendKeepsItsLastPoints checks which points a series keeps, and which it
// drops.
func TestTrendKeepsItsLastPoints(t *testing.T) {
	t.Parallel()
	s := trend{every: time.Minute}
	add := func(after time.Duration, v float64, want bool) {
		fixture.Equal(t, s.add(birth.Add(after), v), want, "%v after the first, %g is taken", after, v)
	}
	add(0, math.NaN(), false)
	add(0, 1, true)
	add(0, 9, false)
	add(59*time.Second, 9, false)
	add(59*time.Second+500*time.Millisecond, 2, true)
	add(90*time.Second, 9, false)
	add(2*time.Minute, math.Inf(1), false)
	add(2*time.Minute, 3, true)
	fixture.Equal(t, fmt.Sprint(s.Values), "[1 2 3]", "it is")
	for i := 3; i <= trendSize; i++ {
		add(time.Duration(i)*time.Minute, float64(i+1), true)
	}
	if n := len(s.Values); n != trendSize || len(s.Times) != trendSize || s.Values[0] != 2 ||
		s.Values[n-1] != trendSize+1 || s.Times[n-1]-s.Times[1] != 60*(trendSize-2) {
		t.Errorf("%d points, from %g to %g", n, s.Values[0], s.Values[n-1])
	}
	add(-time.Second, 7, true)
	if fmt.Sprint(s.Values) != "[7]" || len(s.Times) != 1 {
		t.Errorf("after the clock went back: %v at %v", s.Values, s.Times)
	}
}

// TestForecastOfATrend checks each condition of a forecast at its limit, with
// series that have exact sums.
func TestForecastOfATrend(t *testing.T) {
	t.Parallel()
	line := trending(100, repeated(12, 1)...)
	faster := trending(0, append(repeated(8, 2), repeated(4, 4)...)...)
	slope, _, _ := theilSen(faster.Times, faster.Values, nil)
	slower := trending(0, append(append(repeated(4, 2), repeated(4, 1)...), repeated(4, .5)...)...)
	for name, c := range map[string]struct {
		series   *trend
		distance float64
		least    int
		want     float64 // seconds; -1: none
	}{
		"a line":                         {line, 10, 13, 10},
		"a point too few":                {line, 10, 14, -1},
		"it is there":                    {line, 0, 13, 0},
		"it is beyond":                   {line, -5, 13, 0},
		"nobody knows how far":           {line, math.NaN(), 13, -1},
		"slower, and gets there":         {slower, 2, 13, 4},
		"slower, and does not get there": {slower, 2.01, 13, -1},
		"as fast as lately":              {trending(0, append(repeated(8, 2), repeated(4, 1.5)...)...), 3, 13, 2},
		"faster lately":                  {faster, 4, 13, 4 / slope},
		"not in the first third":         {trending(0, append(repeated(4, 0), repeated(8, 1)...)...), 1, 13, -1},
		"not in the time.Second third": {trending(0,
			append(append(repeated(4, 1), repeated(4, 0)...), repeated(4, 1)...)...), 1, 13, -1},
		"not in the last third": {trending(0, append(repeated(8, 1), repeated(4, 0)...)...), 1, 13, -1},
	} {
		f := forecast{least: c.least, rows: 1}
		if f.look(c.series, c.distance, nil); f.ok != (c.want >= 0) || f.ok && far(f.seconds, c.want, 1e-9) {
			t.Errorf("%s: %v, in %g s; want %g", name, f.ok, f.seconds, c.want)
		}
	}
	f := forecast{least: 13, rows: 1}
	if f.look(line, 10, nil); f.confidence != 1 || !f.even {
		t.Errorf("a line is certain by %g, and even: %v", f.confidence, f.even)
	}
}

// TestForecastNeedsConsecutivePasses holds that every reason against a forecast
// restarts its row. A trend that is too short is no reason.
func TestForecastNeedsConsecutivePasses(t *testing.T) {
	t.Parallel()
	rises := trending(0, repeated(12, 1)...)
	for name, c := range map[string]struct {
		other    *trend
		distance float64
		again    int // passes until it is found
	}{
		"it falls": {trending(0, append(repeated(8, 1), repeated(4, -1)...)...), 10, 3},
		"it levels off": {trending(0, append(append(repeated(4, 8), repeated(4, 1)...), repeated(4, .1)...)...),
			1e3, 3},
		"it gives back":    {trending(0, 5, 1, -4, 1, 1, 1, 1, 1, 1, 1, 1, 1), 10, 3},
		"nothing is known": {rises, math.NaN(), 1},
		"it is short":      {trending(0, repeated(11, 1)...), 10, 1},
	} {
		f := forecast{least: 13, rows: 3, keeps: true}
		look := func(s *trend, distance float64, want bool) {
			f.look(s, distance, nil)
			fixture.Equal(t, f.ok, want, "%s: in a row of %d it is found", name, f.row)
		}
		look(rises, 10, false)
		look(rises, 10, false)
		look(c.other, c.distance, false)
		for n := 1; n <= c.again; n++ {
			look(rises, 10, n == c.again)
		}
		look(rises, 10, true)
	}
}

// TestStraysOfASeries checks the distance to both sides of a line.
func TestStraysOfASeries(t *testing.T) {
	t.Parallel()
	for off, want := range map[float64]float64{0: 0, 5: 5, -3: 3} {
		s := trending(10, repeated(12, 2)...)
		s.Values[6] += off
		if got := s.strays(2); far(got, want, 1e-9) {
			t.Errorf("one point is off by %g: it strays by %g", off, got)
		}
	}
	for off, want := range map[float64]bool{1.19: true, 1.21: false} { // a twentieth of 24 is 1.2
		s, f := trending(10, repeated(12, 2)...), forecast{least: 13, rows: 1}
		s.Values[6] += off
		if f.look(s, 10, nil); !f.ok || f.even != want {
			t.Errorf("one point is off by %g: %+v", off, f)
		}
	}
}

// TestCreepStartsAfterARest checks when growing memory counts as a
// creep: after half an hour in which it stayed the same within a thousandth.
func TestCreepStartsAfterARest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rests  time.Duration
		during float64 // memory in the middle of that half hour
		takes  float64
		crept  bool
	}{
		"after half an hour":           {restsFor, 1000, 1002, true},
		"before":                       {restsFor - step, 1000, 1002, false},
		"as good as nothing":           {restsFor, 1000, 1000.5, false},
		"it had a little less":         {restsFor, 999.5, 1002, true},
		"it had a little more":         {restsFor, 1000.5, 1002, true},
		"it had less":                  {restsFor, 998, 1002, false},
		"it takes again what it gave":  {restsFor, 998, 1000, false},
		"it had less for half an hour": {2 * restsFor, 998, 1002, true},
		"it had more":                  {restsFor, 1500, 1502, false},
		"it had more for half an hour": {2 * restsFor, 1500, 1502, true},
		"it had more, and gives back":  {restsFor, 1500, 1400, false},
	} {
		var r resident
		r.grow(1000, birth)
		r.grow(c.during, birth.Add(c.rests/2))
		now := birth.Add(c.rests)
		r.grow(c.takes, now)
		if got := r.crept.Equal(now); got != c.crept || !got && !r.crept.IsZero() {
			t.Errorf("%s: crept at %v", name, r.crept)
		}
	}
}

// TestCreepExcludesTheStart holds that a trend consists of memory taken after the
// rest, apart from the two minutes between two points, and is even.
func TestCreepExcludesTheStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		crept time.Duration // after the first point
		even  bool
		want  bool
	}{"before": {-time.Hour, true, true}, "with it": {0, true, true}, "two minutes later": {leakEvery, true, true},
		"later": {leakEvery + time.Second, true, false}, "not evenly": {0, false, false}} {
		r := resident{memory: *trending(0, 1), crept: birth.Add(c.crept)}
		if r.even = c.even; r.creeps() != c.want {
			t.Errorf("%s: it creeps: %v", name, r.creeps())
		}
	}
	if r := (resident{forecast: forecast{even: true}, memory: *trending(0, 1)}); r.creeps() {
		t.Error("a value that never rested creeps")
	}
	if r := (resident{forecast: forecast{even: true}, crept: birth}); r.creeps() {
		t.Error("a value without a trend creeps")
	}
}

// TestReturnedMemoryIsNotACreep checks how much memory must be returned to count
// as much.
func TestReturnedMemoryIsNotACreep(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		free, to float64
		gave     bool
	}{
		"a tenth": {0, 900, false}, "more": {0, 899, true}, "a tenth of all": {1000, 800, false}, "more of all": {1000,
			799, true}, "it takes": {0, 1100, false},
	} {
		r, later := resident{free: c.free}, birth.Add(time.Minute)
		r.grow(1000, birth)
		r.grow(c.to, later)
		if got := r.gave.Equal(later); got != c.gave || got && r.peak != c.to || !got && r.peak != max(1000, c.to) {
			t.Errorf("%s: it gave back: %v, and had %g at most since", name, got, r.peak)
		}
	}
}
