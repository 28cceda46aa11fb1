package derived

import (
	"math"

	"gpusteward/collectors"
)

// A GPU against its own past: boards differ by how the chassis cools them, and
// stay as they are. How hot a board is at the power that it draws is learned,
// and what the air does to all of the host's GPUs is taken off.
var (
	TemperatureRise = collectors.Gauge("nvgpu_temperature_rise_celsius", "Degrees by which the GPU is hotter than it used to be at the power that it draws, and at any other, beyond what the host's other GPUs are.")
	HotPlace        = collectors.Gauge("nvgpu_hot_place", "1 where the GPU is no hotter than it used to be at the power that it draws, or the host's other GPUs have become as much hotter: where it sits, and no fault.")
)

// Of places.
const (
	powerSteps = 12      // in each doubling of the power
	knownAfter = 10      // minutes at a power
	placeDay   = 24 * 60 // minutes that a mean is of at most
	placeStep  = 2.0     // degrees that a minute differs by at most: what is new is learned slowly
	steadyPart = 0.10    // of the power, by which a minute differs from those before at most
	placeRise  = 5.0     // degrees: more is not as it was
	mostPowers = 128

	mostCelsius = 200 // more is no temperature
)

// A place is how hot a GPU was on average at each power.
type place map[int]*warmth

// A warmth is the mean of the temperatures at a power.
type warmth struct {
	Celsius float64 `json:"celsius"`
	Minutes int     `json:"minutes"`
}

// powerStep returns the place's key of a power.
func powerStep(watts float64) int { return int(math.Round(powerSteps * math.Log2(max(watts, 1)))) }

// learn takes a minute's mean. What is far from the mean moves it as if it
// were near, so that a fault is not soon the usual.
func (p place) learn(watts, celsius float64) {
	w := p[powerStep(watts)]
	if w == nil {
		if len(p) >= mostPowers {
			return
		}
		w = &warmth{}
		p[powerStep(watts)] = w
	}
	w.Minutes = min(w.Minutes+1, placeDay)
	by := celsius - w.Celsius
	if w.Minutes > knownAfter {
		by = min(max(by, -placeStep), placeStep)
	}
	w.Celsius += by / float64(w.Minutes)
}

// usual returns how hot the GPU was at about a power; NaN where that is not
// known.
func (p place) usual(watts float64) float64 {
	for _, off := range [...]int{0, -1, 1, -2, 2} {
		if w := p[powerStep(watts)+off]; w != nil && w.Minutes >= knownAfter {
			return w.Celsius
		}
	}
	return math.NaN()
}

// hottest returns how hot the GPU was at the power at which it was hottest.
func (p place) hottest() (celsius float64) {
	celsius = math.Inf(-1)
	for _, w := range p {
		if w.Minutes >= knownAfter {
			celsius = max(celsius, w.Celsius)
		}
	}
	return celsius
}

// risen sets by how much each GPU is hotter than its past.
func (d *Metrics) risen() {
	for _, c := range d.cards {
		c.rise = math.NaN()
		if watts := c.smooth[power]; usable(watts) && usable(c.now[power]) {
			c.rise = c.now[coreTemperature] - d.histories[c.uuid].Place.usual(watts)
		}
	}
}

// air returns by how much the GPUs but c are hotter than their past, all in
// all: 0 where there are none whose past is known.
func (d *Metrics) air(c *card) (rise float64, known bool) {
	others := d.room[:0]
	for _, o := range d.cards {
		if o != c && usable(o.rise) {
			others = append(others, o.rise)
		}
	}
	if len(others) == 0 {
		return 0, false
	}
	return Median(others), true
}

// places puts how each GPU is against its own past. A GPU without others may
// be hotter because the air is: only its past excuses it.
func (d *Metrics) places() {
	d.risen()
	for _, c := range d.cards {
		air, known := d.air(c)
		rise := c.rise - air
		if known { // one that does little after much is warm for a while, and one whose power is read too low seems so
			d.put(TemperatureRise, c.labels, min(rise, c.now[coreTemperature]-d.histories[c.uuid].Place.hottest()-air))
		}
		d.put(HotPlace, c.labels, collectors.Bool(rise < placeRise)) // not where nothing is known
	}
}

// settles has the place learn from the minute that ends, if the power was as
// it had been: heat has a past.
func (d *Metrics) settles(c *card) {
	watts, celsius, was := c.drift.mean[power].value(), c.drift.mean[coreTemperature].value(), c.smooth[power]
	if air, _ := d.air(c); within(watts, was, steadyPart*was) && math.Abs(celsius-air) < mostCelsius {
		d.histories[c.uuid].Place.learn(was, celsius-air)
	}
}

// valid returns the place without what no agent has written.
func (p place) valid() place {
	good := place{}
	for at, w := range p {
		if w != nil && usable(w.Celsius) && w.Minutes > 0 && len(good) < mostPowers {
			good[at] = &warmth{w.Celsius, min(w.Minutes, placeDay)}
		}
	}
	return good
}

// size returns how many bytes the place holds.
func (p place) size() int { return 64 * len(p) }
