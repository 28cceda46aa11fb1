package derived

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// residing returns a sample of a workload's memory on a GPU.
func residing(g *rigGPU, workload string, bytes float64) collectors.Sample {
	return collectors.Sample{Metric: workloads.WorkloadMemory, Labels: []string{g.gpu, g.uuid, workload,
		""}, Value: bytes}
}

// linkSamples returns samples of n links of a GPU, with equal bytes and errors.
func linkSamples(g *rigGPU, n int, bytes, errors float64) (all []collectors.Sample) {
	for i := range n {
		link := strconv.Itoa(i)
		all = append(all, collectors.Sample{Metric: links.NVLinkBytes, Labels: []string{g.gpu, g.uuid, "tx",
			"data", link}, Value: bytes},
			collectors.Sample{Metric: links.NVLinkErrors, Labels: []string{g.gpu, g.uuid, "crc",
				link}, Value: errors},
			collectors.Sample{Metric: links.NVLinkInfo, Labels: []string{g.gpu, g.uuid, link, "4", "switch",
				"0000:0" + strconv.Itoa(i%4) + ":00.0"}, Value: 1})
	}
	return all
}

func TestLeakIsForecastAndStartIsNot(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for _, c := range []struct {
		name  string
		bytes func(seconds float64) float64
		leak  bool
	}{
		{"a leak of 1 GiB a minute", func(s float64) float64 { return s / 60 * gib }, true},
		{"a leak in steps", func(s float64) float64 { return math.Floor(s/120) * 2 * gib }, true},
		{"a leak with noise", func(s float64) float64 { return s/60*gib + 2e8*math.Sin(s) }, true},
		{"nothing moves", func(float64) float64 { return 10 * gib }, false},
		{"a start of 3 minutes", func(s float64) float64 { return min(s, 180) / 6 * gib }, false},
		{"a late start", func(s float64) float64 { return min(max(0, s-600), 300) / 10 * gib }, false},
		{"a cache that fills", func(s float64) float64 { return 30 * gib * (1 - math.Exp(-s/150)) }, false},
		{"up and down", func(s float64) float64 { return (10 + 3*math.Sin(s/90)) * gib }, false},
		{"half an hour of data", func(s float64) float64 { return min(s, 1800) / 60 * gib }, false},
		{"a leak in a workload that gives back", func(s float64) float64 { return s/60*gib - 9*gib*math.Floor(s/2400) },
			false},
		{"growth that gives a little back", func(s float64) float64 { return s/120*1e8 - 4e8*math.Floor(s/2400) },
			false},
		{"less and less", func(s float64) float64 { return 40*gib - s/60*gib }, false},
	} {
		r := newRig(1)
		seconds, leaks := 0.0, 0
		r.step(100*time.Minute, func() {
			seconds += step.Seconds()
			r.extra = []collectors.Sample{residing(r.gpus[0], "job", c.bytes(seconds))}
			if seconds > step.Seconds() && usable(r.get(MemoryExhaustion, 0, "job")) {
				leaks++
			}
		})
		fixture.If(t, !c.leak && leaks > 0 || c.leak && leaks < 70,
			"%s: foreseen in %d of 600 calls; a leak: %v", c.name, leaks, c.leak)
		eta, confidence := r.get(MemoryExhaustion, 0, "job"), r.get(ForecastConfidence, 0, "memory_exhaustion", "job")
		if want := 45e9 / gib * 60; c.leak && (far(eta, want, want/4) || confidence < .8 || confidence > 1) {
			t.Errorf("%s: full in %g s, confidence %g; want %g s", c.name, eta, confidence, want)
		}
		r.extra = nil
		r.step(step, nil)
		fixture.If(t, usable(r.get(MemoryExhaustion, 0, "job")), "%s: foreseen of a workload that has gone", c.name)
	}
}

// TestFillingCacheIsNotALeak simulates an allocator that keeps its memory: now
// and then, and ever less often, an input is larger than all before.
func TestFillingCacheIsNotALeak(t *testing.T) {
	t.Parallel()
	const total, runs = 80e9, 400
	alarms := 0
	for seed := range uint64(runs) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		share := .5 + .35*rnd.Float64()
		f := forecast{least: trendSize, rows: inRow, keeps: true}
		memory, room, grown, row, alarmed := trend{every: leakEvery}, make([]float64, 0, 500), 0., 0, false
		now := time.Unix(0, 0)
		for at := range 1440 { // four hours of 10 s
			if now = now.Add(step); rnd.Float64() < 20/float64(20+at) {
				grown += .15 * rnd.Float64() * (.95 - share - grown)
			}
			used := (share + grown) * total
			memory.add(now, used)
			if at%6 == 0 {
				f.look(&memory, total-used, room)
			}
			if row++; !f.ok || f.seconds > 3600 {
				row = 0
			}
			alarmed = alarmed || row >= 6
		}
		alarms += count(alarmed)
	}
	t.Logf("%d of %d jobs whose memory fills are called a leak", alarms, runs)
	fixture.AtMost(t, alarms, runs/200, "… of %d jobs whose memory fills are called a leak", runs)
}

// TestLeakReturnsLittleMemory grows memory by 100 MB in two minutes, with one fall
// by a part of the total growth. A fall by a tenth rules out a leak.
func TestLeakReturnsLittleMemory(t *testing.T) {
	const each = 100e6
	for _, c := range []struct {
		falls       float64
		keeps, want bool
	}{{0, true, true}, {.05, true, true}, {.09, true, true}, {.11, true, false}, {.11, false, true}} {
		series, last := trend{every: leakEvery}, trendSize-1
		for i := range trendSize {
			v := 1e9 + float64(i)*each
			if grows := float64(last-1) * each / (1 + c.falls); i > last/2 {
				v -= each + c.falls*grows
			}
			series.add(time.Unix(1e9, 0).Add(time.Duration(i)*leakEvery), v)
		}
		if got, want := series.drop(), c.falls*(series.Values[last]-series.Values[0]); far(got, want, 1) {
			t.Fatalf("%+v: it falls by %g, want %g", c, got, want)
		}
		f := forecast{least: trendSize, rows: 1, keeps: c.keeps}
		f.look(&series, 1e9, nil)
		fixture.Equal(t, f.ok, c.want, "%+v: a leak", c)
	}
}

func TestInstanceFillsBeforeTheGPU(t *testing.T) {
	t.Parallel()
	r := newRig(1)
	g := r.gpus[0]
	bytes := 0.0
	r.step(80*time.Minute, func() {
		bytes += 1e8 // 10 MB/s
		small := residing(g, "job", bytes)
		small.Labels[3] = "2"
		r.extra = []collectors.Sample{residing(g, "job", bytes), small, {Metric: device.MIGMemory,
			Labels: []string{g.gpu, g.uuid, "2", "free"}, Value: 1e9}}
	})
	eta := r.get(MemoryExhaustion, 0, "job")
	fixture.If(t, far(eta, 100, 1), "1 GB free on the instance at 10 MB/s: full in %g s, want 100", eta)
	whole(t, r.last)
}

func TestHeatAndSpareRowsAreForecast(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	for _, g := range r.gpus {
		g.values[remappedRows], g.values[margin] = 0, 40
	}
	r.step(22*time.Minute, func() { r.gpus[0].values[margin] -= 1. / 6 }) // a degree per minute
	if got := r.get(ThermalLimit, 0); far(got, 18*60, 60) || usable(r.get(ThermalLimit, 1)) {
		t.Errorf("18 degrees at one a minute: %g s, and %g where nothing moves", got, r.get(ThermalLimit, 1))
	}
	for range 30 { // half days
		r.now = r.now.Add(12*time.Hour - step)
		r.gpus[0].values[remappedRows] += 4
		r.step(step, nil)
	}
	want := (512 - r.gpus[0].values[remappedRows]) / 8 * 86400
	if got := r.get(SpareRowsExhaustion, 0); far(got, want, want/50) || usable(r.get(SpareRowsExhaustion, 1)) {
		t.Errorf("8 rows a day: none left in %g s, want %g; and %g where none are replaced", got, want,
			r.get(SpareRowsExhaustion, 1))
	}
	// The two weeks outlive a restart.
	text, _ := json.Marshal(r.Save(r.now))
	again := newRig(2)
	again.now, again.gpus = r.now, r.gpus
	fixture.Must(t, again.Restore(text, asItIs))
	again.step(step, nil)
	got := again.get(SpareRowsExhaustion, 0)
	fixture.If(t, far(got, want, want/50), "after a restart: %g s, want %g", got, want)
}

func TestLinkComparedWithSiblings(t *testing.T) {
	t.Parallel()
	r := newRig(5)
	var sent, bad float64
	r.step(15*time.Minute, func() {
		sent, bad = sent+1e11, bad+3 // 10 GB/s, 18 errors per minute
		r.extra = nil
		for i, g := range r.gpus {
			links := linkSamples(g, 18, sent, 1000)
			if i == 0 {
				links[3*4].Value, links[3*7+1].Value = sent/4, 1000+bad
			}
			r.extra = append(r.extra, links...)
		}
	})
	for _, c := range []struct {
		link, signal string
		odd          bool
	}{{"4", "bytes", true}, {"5", "bytes", false}, {"7", "errors", true}, {"5", "errors", false}} {
		z, ratio := r.get(PeerLinkZScore, 0, c.link, c.signal), r.get(PeerLinkDeviationRatio, 0, c.link, c.signal)
		if odd := z >= 5 && ratio >= 1; odd != c.odd || !usable(z) {
			t.Errorf("link %s: %s score %g at %g times more; want an outlier: %v", c.link, c.signal, z, ratio, c.odd)
		}
	}
	if z, ratio := r.get(PeerZScore, 0, "nvlink_errors"), r.get(PeerDeviationRatio, 0, "nvlink_errors"); z < 5 ||
		ratio < 1 {
		t.Errorf("all links of the GPU: score %g at %g times more", z, ratio)
	}
	fixture.Equal(t, r.get(PeerZScore, 1, "nvlink_errors"), 0, "all links of a sibling")
}

func TestLinksToOtherEndsAreNotSiblings(t *testing.T) {
	r := newRig(1)
	r.step(3*time.Minute, func() {
		r.extra = linkSamples(r.gpus[0], 6, 0, 0)
		for i := range 6 {
			r.extra[3*i+2].Labels[4] = "gpu"
		}
	})
	fixture.Equal(t, len(r.last.Of(PeerLinkZScore)), 0, "comparisons of links to different GPUs:")
}

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

// TestTrendKeepsItsLastPoints checks which points a series keeps, and which it drops.
func TestTrendKeepsItsLastPoints(t *testing.T) {
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
	fixture.If(t, fmt.Sprint(s.Values) != "[7]" || len(s.Times) != 1,
		"after the clock went back: %v at %v", s.Values, s.Times)
}

// TestForecastOfATrend checks each condition of a forecast at its limit, with series that have exact sums.
func TestForecastOfATrend(t *testing.T) {
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
	f.look(line, 10, nil)
	fixture.If(t, f.confidence != 1 || !f.even, "a line is certain by %g, and even: %v", f.confidence, f.even)
}

func TestFastTrendGoesBeforeASlowOne(t *testing.T) {
	for ok, want := range map[bool]float64{true: 1, false: 2} {
		r := &resident{forecast: forecast{ok: ok, seconds: 1}, slowly: forecast{ok: true, seconds: 2}}
		fixture.Equal(t, r.soonest().seconds, want, "an hour's trend finds a leak: %v; it is full in seconds", ok)
	}
	for free, slowly := range map[float64]bool{4.9: true, 5.1: false} { // of 100
		r := &resident{free: free}
		r.creep(100-free, birth)
		fixture.Equal(t, r.slow != nil, slowly, "with %v %% free it has a slow trend", free)
	}
}

// TestForecastNeedsConsecutivePasses holds that every reason against a forecast
// restarts its row. A trend that is too short is no reason.
func TestForecastNeedsConsecutivePasses(t *testing.T) {
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
	for off, want := range map[float64]float64{0: 0, 5: 5, -3: 3} {
		s := trending(10, repeated(12, 2)...)
		s.Values[6] += off
		got := s.strays(2)
		fixture.If(t, far(got, want, 1e-9), "one point is off by %g: it strays by %g", off, got)
	}
	for off, want := range map[float64]bool{1.19: true, 1.21: false} { // a twentieth of 24 is 1.2
		s, f := trending(10, repeated(12, 2)...), forecast{least: 13, rows: 1}
		s.Values[6] += off
		f.look(s, 10, nil)
		fixture.If(t, !f.ok || f.even != want, "one point is off by %g: %+v", off, f)
	}
}

// TestCreepStartsAfterARest checks when growing memory counts as a
// creep: after half an hour in which it stayed the same within a thousandth.
func TestCreepStartsAfterARest(t *testing.T) {
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
		got := r.crept.Equal(now)
		fixture.If(t, got != c.crept || !got && !r.crept.IsZero(), "%s: crept at %v", name, r.crept)
	}
}

// TestCreepExcludesTheStart holds that a trend consists of memory taken after the
// rest, apart from the two minutes between two points, and is even.
func TestCreepExcludesTheStart(t *testing.T) {
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
	never, none := resident{memory: *trending(0, 1)}, resident{crept: birth}
	never.even, none.even = true, true
	fixture.Equal(t, never.creeps() || none.creeps(), false, "a value that never rested, or without a trend, creeps:")
}

// TestReturnedMemoryIsNotACreep checks how much memory must be returned to count as much.
func TestReturnedMemoryIsNotACreep(t *testing.T) {
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
