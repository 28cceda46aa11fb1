package derived

import (
	"math"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestPeersAreComparedByLikeLoad(t *testing.T) {
	t.Parallel()
	hot := func(g *rigGPU) { g.values[coreTemperature] += 15; g.values[power] *= 1.2 }
	for _, c := range []struct {
		name  string
		gpus  int
		other func(i int, g *rigGPU) // changes the siblings
		heat  bool                   // temperatures are compared
		power bool
		own   map[int]float64 // its own values, if they differ
	}{
		{"like siblings", 4, nil, true, true, nil},
		{"too few", 3, nil, false, false, nil},
		{"other models", 4, func(_ int, g *rigGPU) { g.model = "NVIDIA H200" }, false, false, nil},
		{"another power limit", 4, func(_ int, g *rigGPU) { g.values[powerLimit] = 500 }, false, false, nil},
		{"less used", 4, func(_ int, g *rigGPU) { g.values[utilization] = .6 }, false, false, nil},
		{"other work", 4, func(_ int, g *rigGPU) { g.values[tensorActivity] = .1 }, false, false, nil},
		{"work that is not known", 4, func(_ int, g *rigGPU) { g.values[smActivity] = math.NaN() }, true, true, nil},
		{"work of its own that is not known", 4, nil, true, false, map[int]float64{smActivity: math.NaN()}},
		{"another clock", 4, func(_ int, g *rigGPU) { g.values[smClock] = 1500e6 }, true, false, nil},
		{"less power", 4, func(_ int, g *rigGPU) { g.values[power] = 300 }, false, true, nil},
		{"a clock that is nearly as high", 4, func(_ int, g *rigGPU) { g.values[smClock] *= .955 }, true, true, nil},
		{"a clock that is not", 4, func(_ int, g *rigGPU) { g.values[smClock] *= .945 }, true, false, nil},
		{"a little less used", 4, func(_ int, g *rigGPU) { g.values[utilization] -= .095 }, true, true, nil},
		{"not as much used", 4, func(_ int, g *rigGPU) { g.values[utilization] -= .105 }, false, false, nil},
		{"a little other work", 4, func(_ int, g *rigGPU) { g.values[memoryActivity] += .095 }, true, true, nil},
		{"work that is not as much", 4, func(_ int, g *rigGPU) { g.values[memoryActivity] += .105 }, false, false, nil},
		{"a little less power", 4, func(_ int, g *rigGPU) { g.values[power] = 492 }, true, true, nil},
		{"not as much power", 4, func(_ int, g *rigGPU) { g.values[power] = 488 }, false, true, nil},
		{"one of four is other", 5, func(i int, g *rigGPU) { g.model += strings.Repeat("x", count(i == 1)) }, true,
			true, nil},
	} {
		r := newRig(c.gpus)
		for i, g := range r.gpus[1:] {
			if c.other != nil {
				c.other(i+1, g)
			}
		}
		hot(r.gpus[0])
		for i, v := range c.own {
			r.gpus[0].values[i] = v
		}
		r.gpus[0].values[power] = min(r.gpus[0].values[power], 560)
		r.step(time.Minute, nil)
		fixture.AtMost(t, len(r.last.Of(PeerZScore)), 0,
			"%s: after a minute nobody knows for how long they have run", c.name)
		r.step(2*time.Minute, nil)
		was := r.gpus[1].values
		for _, i := range []int{utilization, power, tensorActivity} { // a pass without readings is no change of load
			r.gpus[1].values[i] = math.NaN()
		}
		r.step(step, nil)
		for _, i := range []int{utilization, power, tensorActivity} {
			r.gpus[1].values[i] = was[i]
		}
		r.step(step, nil)
		z, by := r.get(PeerZScore, 0, "temperature"), r.get(PeerDeviationCelsius, 0, "temperature")
		fixture.If(t, c.heat && (z != 7.5 || by != 15) || !c.heat && usable(z),
			"%s: %g degrees more score %g; want 15 and 7.5: %v", c.name, by, z, c.heat)
		z, ratio := r.get(PeerZScore, 0, "power"), r.get(PeerDeviationRatio, 0, "power")
		fixture.If(t, c.power && (z < 20 || ratio < .1) || !c.power && usable(z),
			"%s: a power of %+g scores %g; want a comparison: %v", c.name, ratio, z, c.power)
	}
}

func TestLongerBusyGPUIsNotAnOutlier(t *testing.T) {
	t.Parallel()
	r := newRig(5)
	hot := func(busy bool, g *rigGPU) {
		g.values[utilization], g.values[power], g.values[coreTemperature] = .95, 500,
			g.values[coreTemperature]+(70-g.values[coreTemperature])*.15
		if !busy {
			g.values[utilization], g.values[power], g.values[coreTemperature] = 0, 80,
				g.values[coreTemperature]+(40-g.values[coreTemperature])*.45
		}
	}
	for minute := range 60 { // jobs end on one GPU a minute later than on the others
		r.step(time.Minute, func() {
			for i, g := range r.gpus {
				hot(minute%20 < 10+count(i == 0), g)
			}
			if r.last != nil && r.get(PeerZScore, 0, "temperature") >= 5 &&
				r.get(PeerDeviationCelsius, 0, "temperature") >= 8 {
				t.Fatalf("minute %d: an outlier by %g degrees", minute, r.get(PeerDeviationCelsius, 0, "temperature"))
			}
		})
	}
}

func TestSlowGPUHasNoReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		set  func(v *[inputCount]float64)
		want float64 // NaN: not compared
	}{
		{"as fast as others", func(*[inputCount]float64) {}, 1},
		{"slow", func(v *[inputCount]float64) { v[smClock] = 990e6; v[power] = 300 }, .5},
		{"held down by its power limit, other work", func(v *[inputCount]float64) {
			v[smClock], v[power], v[capped], v[tensorActivity] = 1400e6, 695, 1, .9
		}, math.NaN()},
		{"idle", func(v *[inputCount]float64) { v[smClock], v[utilization] = 345e6, 0 }, math.NaN()},
	} {
		r := newRig(5)
		c.set(&r.gpus[0].values)
		r.step(3*time.Minute, nil)
		if got := r.get(PeerClockRatio, 0); got != c.want && usable(got+c.want) || usable(got) != usable(c.want) {
			t.Errorf("%s: %g of its peers' clock, want %g", c.name, got, c.want)
		}
	}
}

// TestBoundsOfPeerComparison runs the same work on five GPUs, one of them slow: similar enough for a comparison of
// their clocks, and slightly too different.
func TestBoundsOfPeerComparison(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		all, one map[int]float64
		compared bool
	}{
		"busy enough":                {all: map[int]float64{utilization: .80}, compared: true},
		"not busy enough":            {all: map[int]float64{utilization: .79}},
		"no limit is known":          {all: map[int]float64{powerLimit: math.NaN()}, compared: true},
		"under the limit":            {all: map[int]float64{power: 629}, one: map[int]float64{tensorActivity: .9}, compared: true},
		"at the limit, other work":   {all: map[int]float64{power: 630}, one: map[int]float64{tensorActivity: .9}},
		"at the limit, like work":    {all: map[int]float64{power: 630}, compared: true},
		"at the limit, work unknown": {all: map[int]float64{power: 630, smActivity: math.NaN()}},
		"alone at the limit":         {one: map[int]float64{power: 630}},
		"the others at the limit":    {all: map[int]float64{power: 630}, one: map[int]float64{power: 629}, compared: true},
		"capped now and then": {all: map[int]float64{capped: .05}, one: map[int]float64{tensorActivity: .9},
			compared: true},
		"capped more often":  {all: map[int]float64{capped: .06}, one: map[int]float64{tensorActivity: .9}},
		"a little less used": {one: map[int]float64{utilization: .86}, compared: true},
		"not as much used":   {one: map[int]float64{utilization: .84}},
	} {
		r := newRig(5)
		for i, g := range r.gpus {
			for input, v := range c.all {
				g.values[input] = v
			}
			if i == 0 {
				g.values[smClock] = 990e6
				for input, v := range c.one {
					g.values[input] = v
				}
			}
		}
		r.step(3*time.Minute, nil)
		want := math.NaN()
		if c.compared {
			want = .5
		}
		if got := r.get(PeerClockRatio, 0); got != want && usable(got+want) || usable(got) != usable(want) {
			t.Errorf("%s: %g of its peers' clock, want %g", name, got, want)
		}
	}
}
