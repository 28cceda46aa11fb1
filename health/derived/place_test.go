package derived

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A board's place is known after ten minutes at a power. A fault does not
// become normal within a day.
func TestPlaceIsLearnedSlowly(t *testing.T) {
	t.Parallel()
	p := place{}
	for range knownAfter - 1 {
		p.learn(600, 60)
	}
	if v := p.usual(600); usable(v) {
		t.Errorf("known before ten minutes: %g", v)
	}
	for range placeDay {
		p.learn(600, 60)
	}
	fixture.Equal(t, p.usual(630), 60, "at about the same power")
	if v := p.usual(300); usable(v) {
		t.Errorf("at half the power %g, and nothing is known of that", v)
	}
	for range placeDay {
		p.learn(600, 76)
	}
	if v := p.usual(600); far(v, 62, .01) {
		t.Errorf("after a day of 16 degrees more: %g, want two degrees more", v)
	}
	if got := (place{3: nil, 4: {Celsius: math.Inf(1), Minutes: 20}, 5: {Celsius: 50, Minutes: -1},
		6: {Celsius: 50, Minutes: 20}}).valid(); len(got) != 1 || got[6] == nil {
		t.Errorf("valid: %v", got)
	}
}

// A rise of all GPUs is the air's and does not count. A rise of one GPU counts.
// A restart keeps all places.
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
