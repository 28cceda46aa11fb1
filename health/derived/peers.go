package derived

import (
	"math"

	"gpusteward/collectors"
)

// Comparison of a GPU with its siblings: the GPUs of the same model and power
// limit with a similar load. A GPU with fewer than three siblings has no
// series.
var (
	PeerZScore = collectors.Gauge("nvgpu_peer_zscore",
		"Distance of the GPU from the median of its like-loaded siblings, in robust standard deviations.", "signal")
	PeerDeviationCelsius = collectors.Gauge("nvgpu_peer_deviation_celsius",
		"Degrees by which the GPU is hotter than the median of its like-loaded siblings.", "signal")
	PeerDeviationRatio = collectors.Gauge("nvgpu_peer_deviation_ratio",
		"Excess of the GPU's value over the median of its like-loaded siblings, as a part of that; negative below.",
		"signal")
	PeerClockRatio = collectors.Gauge("nvgpu_peer_clock_ratio",
		"SM clock of a busy GPU, divided by the median of its busy siblings with the same power limit.")
)

// Limits of siblings.
const (
	leastPeers = 3 // beside the GPU itself
	likeClock  = 0.05

	placeCelsius = 2.0  // the least standard deviation of temperatures between GPUs
	busyFrom     = 0.80 // least utilization for a comparison of clocks
	idleTo       = 0.02 // highest utilization of an idle GPU
	cappedNow    = 0.05 // part of the time in which the power limit held the clocks down
	atLimit      = 0.90 // of the power limit
)

// peers compares c with its siblings.
func (d *Metrics) peers(c *card) {
	for _, i := range [...]int{coreTemperature, memoryTemperature} {
		if center, z, ok := d.among(c, i, c.heated); ok {
			d.put(PeerZScore, c.watched[i].labels, z)
			d.put(PeerDeviationCelsius, c.watched[i].labels, c.now[i]-center)
		}
	}
	if center, z, ok := d.among(c, power, c.works); ok && center > 0 {
		d.put(PeerZScore, c.watched[power].labels, z)
		d.put(PeerDeviationRatio, c.watched[power].labels, c.now[power]/center-1)
	}
	if center, _, ok := d.among(c, smClock, c.races); ok && center > 0 {
		d.put(PeerClockRatio, c.labels, c.now[smClock]/center)
	}
}

// among compares an input of c with those of the GPUs that siblings picks.
func (d *Metrics) among(c *card, input int, siblings func(*card) bool) (center, z float64, ok bool) {
	others := d.room[:0]
	for _, o := range d.cards {
		if o != c && usable(o.now[input]) && siblings(o) {
			others = append(others, o.now[input])
		}
	}
	if len(others) < leastPeers || !usable(c.now[input]) {
		return 0, 0, false
	}
	center = Median(others)
	return center, robustZ(c.now[input], center, mad(others, center), floor(input, center)), true
}

// floor is the least standard deviation of an input between GPUs.
func floor(input int, center float64) float64 {
	switch input {
	case smClock, memoryClock:
		return siliconClock * center
	case smActivity:
		return likeLoad / 2
	case memoryActivity:
		return (center + likeLoad) * likeLoad / 2
	case power:
		return watches[power].floor
	}
	return placeCelsius // the position in the chassis makes a GPU some degrees hotter
}

// same reports whether two GPUs have the same model and power limit.
func (c *card) same(o *card) bool {
	limits := c.now[powerLimit] == o.now[powerLimit] || !usable(c.now[powerLimit]) && !usable(o.now[powerLimit])
	return c.model != "" && c.model == o.model && limits
}

// like reports whether two GPUs of a kind have a similar load: utilization says
// how long something ran, and the activity of the units what it was. The
// smoothed load counts, because power and temperature lag; so a new GPU has
// no siblings yet.
func (c *card) like(o *card) bool {
	known := c.settled && o.settled && usable(c.now[utilization]) && usable(o.now[utilization])
	if !known || !c.same(o) || !within(c.smooth[utilization], o.smooth[utilization], likeLoad) {
		return false
	}
	for i := memoryUtilization; i < capped; i++ {
		if math.Abs(c.smooth[i]-o.smooth[i]) > likeLoad {
			return false
		}
	}
	return true
}

// heated reports whether o should be as hot as c. A GPU that draws less is
// cooler, now and for a while: only siblings that draw as much show that c is
// too hot.
func (c *card) heated(o *card) bool {
	least := likeLoad * c.now[powerLimit]
	return c.like(o) && !(o.now[power] < c.now[power]-least) && !(o.smooth[power] < c.smooth[power]-least)
}

// works reports whether o should draw as much as c: both are idle, or both are
// busy with the same work at the same clock. Only the activity of the units
// identifies the work, and a low activity is no evidence.
func (c *card) works(o *card) bool {
	both := c.busy() && o.busy() && usable(c.now[smActivity]) || c.idle() && o.idle()
	return both && c.like(o) && within(c.now[smClock], o.now[smClock], likeClock*c.now[smClock])
}

// races reports whether o should be as fast as c: both are busy. A GPU at its
// power limit is slower the heavier its work is, so then the work must also be
// alike, as GPM shows it, and the sibling at its limit.
func (c *card) races(o *card) bool {
	alike := c.same(o) && c.busy() && o.busy() && within(c.smooth[utilization], o.smooth[utilization], likeLoad)
	return alike && (!c.limited() || usable(c.now[smActivity]) && o.limited() && c.like(o))
}

func (c *card) busy() bool { return min(c.now[utilization], c.smooth[utilization]) >= busyFrom }

func (c *card) idle() bool { return max(c.now[utilization], c.smooth[utilization]) <= idleTo }

func (c *card) limited() bool {
	return c.smooth[capped] > cappedNow || c.smooth[power] >= atLimit*c.now[powerLimit]
}
