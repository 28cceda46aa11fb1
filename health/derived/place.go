package derived

import (
	"math"

	"gpusteward/collectors"
)

// Comparison of a GPU with its own past: the chassis cools each board
// differently, but consistently. The metrics learn the temperature of a board
// at its power, and subtract the effect of the air on all GPUs of the host.
var (
	TemperatureRise = collectors.Gauge("nvgpu_temperature_rise_celsius",
		"Degrees by which the GPU is hotter than it used to be at its power, and at any other, beyond the rise of "+
			"the host's other GPUs.")
	HotPlace = collectors.Gauge("nvgpu_hot_place",
		"1 if the GPU is no hotter than it used to be at its power, or if the host's other GPUs have become as much "+
			"hotter: the cause is its place, not a fault.")
)

// Limits of places.
const (
	powerSteps = 12      // in each doubling of the power
	knownAfter = 10      // minutes at a power
	placeDay   = 24 * 60 // most minutes of a mean
	placeStep  = 2.0     // most degrees by which a minute counts as different: news is learned slowly
	steadyPart = 0.10    // of the power: greatest change between steady minutes
	placeRise  = 5.0     // degrees: a greater rise is a change
	mostPowers = 128

	mostCelsius = 200 // a higher value is no temperature
)

// A place is the mean temperature of a GPU at each power.
type place map[int]*warmth

// A warmth is the mean of the temperatures at a power.
type warmth struct {
	Celsius float64 `json:"celsius"`
	Minutes int     `json:"minutes"`
}

// powerStep returns the place's key for a power.
func powerStep(watts float64) int { return int(math.Round(powerSteps * math.Log2(max(watts, 1)))) }

// learn takes a minute's mean. A value far from the mean moves it as if it were
// near, so that a fault does not soon become usual.
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

// usual returns the GPU's usual temperature at about a power; NaN if it is
// unknown.
func (p place) usual(watts float64) float64 {
	for _, off := range [...]int{0, -1, 1, -2, 2} {
		if w := p[powerStep(watts)+off]; w != nil && w.Minutes >= knownAfter {
			return w.Celsius
		}
	}
	return math.NaN()
}

// hottest returns the GPU's usual temperature at the power at which it is
// hottest.
func (p place) hottest() (celsius float64) {
	celsius = math.Inf(-1)
	for _, w := range p {
		if w.Minutes >= knownAfter {
			celsius = max(celsius, w.Celsius)
		}
	}
	return celsius
}

// risen sets the rise of each GPU above its past.
func (d *Metrics) risen() {
	for _, c := range d.cards {
		c.rise = math.NaN()
		if watts := c.smooth[power]; usable(watts) && usable(c.now[power]) {
			c.rise = c.now[coreTemperature] - d.histories[c.uuid].Place.usual(watts)
		}
	}
}

// air returns the rise of the GPUs other than c above their past, taken
// together: 0 if no other GPU has a known past.
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

// places puts the comparison of each GPU with its own past. The air may have
// made a host's only GPU hotter: only its past excuses it.
func (d *Metrics) places() {
	d.risen()
	for _, c := range d.cards {
		air, known := d.air(c)
		rise := c.rise - air
		if known { // a GPU stays warm for a while after work, and seems warm if its power reads too low
			d.put(TemperatureRise, c.labels, min(rise, c.now[coreTemperature]-d.histories[c.uuid].Place.hottest()-air))
		}
		d.put(HotPlace, c.labels, collectors.Bool(rise < placeRise)) // not without a known past
	}
}

// settles lets the place learn from the minute that ends, if the power was
// steady: heat has a past.
func (d *Metrics) settles(c *card) {
	watts, celsius, was := c.drift.mean[power].value(), c.drift.mean[coreTemperature].value(), c.smooth[power]
	if air, _ := d.air(c); within(watts, was, steadyPart*was) && math.Abs(celsius-air) < mostCelsius {
		d.histories[c.uuid].Place.learn(was, celsius-air)
	}
}

// valid returns the place without values that no agent has written.
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
