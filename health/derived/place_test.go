package derived

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A rise of all GPUs is the air's and does not count. A rise of one GPU counts. A restart keeps all places.
func TestRiseIsRelativeToOtherGPUs(t *testing.T) {
	t.Parallel()
	r := newRig(3)
	r.step(20*time.Minute, nil)
	heat := func(by float64, gpus ...int) {
		for _, i := range gpus {
			r.gpus[i].values[coreTemperature] += by
		}
		r.step(time.Minute, nil)
	}
	is := func(why string, rise, inPlace float64) {
		t.Helper()
		if got, place := r.get(TemperatureRise, 0), r.get(HotPlace, 0); far(got, rise, .5) || place != inPlace {
			t.Errorf("%s: a rise of %.2f, in its place %g; want %g and %g", why, got, place, rise, inPlace)
		}
	}
	is("as it was", 0, 1)
	heat(6, 0, 1, 2)
	is("warm air", 0, 1)
	heat(10, 0)
	is("one alone", 10, 0)

	text := fixture.Value(json.Marshal(r.Save(r.now)))(t)
	r.Metrics = New()
	fixture.Must(t, r.Restore(text, func(t time.Time) time.Time { return t }))
	heat(0)
	is("after a restart", 10, 0)

	for _, g := range r.gpus {
		g.values[power] = 300
	}
	r.step(10*time.Minute, nil)
	if got := r.get(TemperatureRise, 0); usable(got) && got > 8 {
		t.Errorf("at a power that is not known: %g", got)
	}
}

// stepsFrom returns the power that is some steps of a place above another.
func stepsFrom(watts float64, steps int) float64 { return watts * math.Exp2(float64(steps)/powerSteps) }

// learned returns a place that learned a temperature in so many minutes.
func learned(minutes int, celsius float64) place {
	p := place{}
	for range minutes {
		p.learn(600, celsius)
	}
	return p
}

// TestPlaceIsKnownNearAPower checks how near a power must be to a known one,
// which of several counts, and after how many minutes a place is known.
func TestPlaceIsKnownNearAPower(t *testing.T) {
	known := learned(knownAfter, 60)
	for steps := -4; steps <= 4; steps++ {
		if got := known.usual(stepsFrom(600, steps)); usable(got) != (steps >= -2 && steps <= 2) || usable(got) &&
			got != 60 {
			t.Errorf("%d steps away: %g", steps, got)
		}
	}
	at := powerStep(600)
	several := place{at - 2: {10, knownAfter}, at - 1: {20, knownAfter}, at + 1: {30, knownAfter},
		at + 2: {40, knownAfter}, at + 9: {99, knownAfter - 1}}
	for steps, want := range map[int]float64{-2: 10, -1: 20, 0: 20, 1: 30, 2: 40, 3: 40, 4: 40} {
		fixture.Equal(t, several.usual(stepsFrom(600, steps)), want, "%d steps away it was … degrees hot", steps)
	}
	fixture.Equal(t, several.hottest(), 40, "at the most it was … degrees hot")
	if got := (place{}).hottest(); !math.IsInf(got, -1) {
		t.Errorf("where nothing is known it was %g degrees hot", got)
	}
	if powerStep(0) != 0 || powerStep(-5) != 0 || powerStep(2) != powerSteps {
		t.Errorf("steps of 0, -5 and 2 W: %d, %d, %d", powerStep(0), powerStep(-5), powerStep(2))
	}
}

// TestPlaceLearnsFromOneMinute checks the movement of a mean: a plain mean for ten minutes, and then one in which a
// minute counts as two degrees off at most.
func TestPlaceLearnsFromOneMinute(t *testing.T) {
	for _, c := range []struct {
		minutes       int
		celsius, want float64
	}{
		{0, 70, 70}, {knownAfter - 1, 70, 61}, {knownAfter, 70, 60 + 2./11}, {knownAfter, 50, 60 - 2./11}, {knownAfter,
			61, 60 + 1./11},
		{placeDay - 1, 61, 60 + 1./placeDay}, {placeDay, 61, 60 + 1./placeDay}, {2 * placeDay, 61, 60 + 1./placeDay},
	} {
		p := learned(c.minutes, 60)
		p.learn(600, c.celsius)
		if w := p[powerStep(600)]; far(w.Celsius, c.want, 1e-9) || w.Minutes != min(c.minutes+1, placeDay) {
			t.Errorf("after %d minutes one of %g degrees makes %+v, want %g", c.minutes, c.celsius, *w, c.want)
		}
	}
}

// TestPlaceIsBounded checks how many powers a place knows, and that it keeps learning those.
func TestPlaceIsBounded(t *testing.T) {
	p := place{}
	for step := range 2 * mostPowers {
		p.learn(stepsFrom(1, step), 60)
	}
	p.learn(1, 62)
	if len(p) != mostPowers || p[0].Minutes != 2 || p[mostPowers-1] == nil {
		t.Errorf("%d powers, the first known for %d minutes", len(p), p[0].Minutes)
	}
	stored := place{}
	for step := range 2 * mostPowers {
		stored[step] = &warmth{60, placeDay + step - mostPowers}
	}
	stored[0] = &warmth{60, 0}
	good := stored.valid()
	for step, w := range good {
		fixture.Equal(t, w.Minutes > placeDay || step == 0, false, "step %d: %+v", step, *w)
	}
	fixture.Equal(t, len(good), mostPowers, "valid powers")
	got := (place{3: nil, 4: {Celsius: math.Inf(1), Minutes: 20}, 5: {Celsius: 50, Minutes: -1},
		6: {Celsius: 50, Minutes: 20}}).valid()
	fixture.If(t, len(got) != 1 || got[6] == nil, "valid: %v", got)
}

// TestPlaceLearnsFromSteadyMinutes checks how steady the power must be, and which values are not temperatures.
func TestPlaceLearnsFromSteadyMinutes(t *testing.T) {
	for _, c := range []struct {
		watts, celsius float64
		learns         bool
	}{
		{600, 60, true}, {660, 60, true}, {661, 60, false}, {540, 60, true}, {539, 60, false}, {math.NaN(), 60, false},
		{600, mostCelsius - 1, true}, {600, mostCelsius, false}, {600, 1 - mostCelsius, true}, {600, -mostCelsius,
			false}, {600, math.NaN(), false},
	} {
		r := newRig(1)
		r.step(step, nil)
		gpu := r.cards[0]
		gpu.smooth[power] = 600
		gpu.drift.mean[power], gpu.drift.mean[coreTemperature] = mean{2 * c.watts, 2}, mean{3 * c.celsius, 3}
		history := r.histories[gpu.uuid]
		history.Place = place{}
		r.settles(gpu)
		fixture.Equal(t, len(history.Place) == 1, c.learns, "%+v: %v", c, history.Place)
	}
}

// TestRiseThresholdIsFiveDegrees checks the rise at which a GPU counts as hotter than before.
func TestRiseThresholdIsFiveDegrees(t *testing.T) {
	t.Parallel()
	for rise, want := range map[float64]float64{0: 1, placeRise - .5: 1, placeRise: 0, placeRise + 1: 0, -9: 1} {
		r := newRig(1)
		r.step(20*time.Minute, nil)
		r.gpus[0].values[coreTemperature] += rise
		if r.step(step, nil); r.get(HotPlace, 0) != want || usable(r.get(TemperatureRise, 0)) {
			t.Errorf("%g degrees more: in its place %g, and beside nobody by %g", rise, r.get(HotPlace, 0),
				r.get(TemperatureRise, 0))
		}
	}
}
