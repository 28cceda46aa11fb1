package derived

import (
	"math"
	"time"

	"gpusteward/collectors"
)

// Slow drift: sums of the distances between the means of minutes and a
// baseline.
var (
	DriftCUSUM = collectors.Gauge("nvgpu_drift_cusum", "Cumulative sum of how far each minute's mean is "+
		"from an hour's baseline under the same load, in standard deviations; negative downwards.", "signal")
	ECCCorrectablePerHour = collectors.Gauge("nvgpu_ecc_correctable_per_hour", "Corrected ECC errors in the last hour.")
	ECCCorrectableCUSUM   = collectors.Gauge("nvgpu_ecc_correctable_cusum",
		"Cumulative sum of how far each minute's corrected ECC errors are over the GPU's own baseline, in standard "+
			"deviations.")
	PCIeCorrectableCUSUM = collectors.Gauge("nvgpu_pcie_correctable_cusum",
		"Cumulative sum of how far each minute's correctable PCIe errors are over the GPU's own baseline, in "+
			"standard deviations.")
)

// drift watches for slow change. A baseline is an hour of similar load; an hour
// of another load makes a new one.
type drift struct {
	mean     [capped]mean // of this minute, by input
	learning *learning    // until the baseline is known
	center   [power + 1]float64
	sigma    [power + 1]float64
	load     [capped]float64 // of the baseline, from utilization on
	known    bool
	unlike   int // minutes in a row with another load
	sums     [power + 1]cusum
}

type mean struct {
	sum float64
	n   int
}

// value returns the mean; NaN of nothing.
func (m mean) value() float64 { return m.sum / float64(m.n) }

// learning is the hour that makes a baseline.
type learning [capped]window

// sum adds the newest values to the minute's.
func (c *card) sum() {
	for i := range c.drift.mean {
		if v := c.now[i]; usable(v) {
			c.drift.mean[i].sum += v
			c.drift.mean[i].n++
		}
	}
}

// advance ends a minute.
func (f *drift) advance() {
	var minute [capped]float64
	for i, m := range f.mean {
		minute[i] = m.value()
	}
	clear(f.mean[:])
	switch {
	case !usable(minute[utilization]):
	case !f.known:
		f.learn(minute)
	case !alike(minute, f.load):
		if f.unlike++; f.unlike >= windowSize {
			*f = drift{}
			f.learn(minute)
		}
	default:
		f.unlike = 0
		for i := range f.sums {
			if usable(minute[i]) && f.sigma[i] > 0 {
				f.sums[i].add((minute[i] - f.center[i]) / f.sigma[i])
			}
		}
	}
}

// learn adds a minute to the baseline, or starts a new one if the load differs.
func (f *drift) learn(minute [capped]float64) {
	if f.learning == nil || !alike(minute, f.learning.medians()) {
		f.learning = &learning{}
	}
	for i, v := range minute {
		if usable(v) {
			f.learning[i].push(v)
		}
	}
	if f.learning[utilization].n < windowSize {
		return
	}
	f.load, f.known = f.learning.medians(), true
	for i := range f.center {
		if w := &f.learning[i]; w.n >= windowSize/2 {
			f.center[i] = w.median()
			f.sigma[i] = max(madToSigma*w.mad(f.center[i]), watches[i].floor)
		}
	}
	f.learning = nil
}

// alike reports whether two loads are similar, as far as both are known.
func alike(a, b [capped]float64) bool {
	for i := utilization; i < capped; i++ {
		if math.Abs(a[i]-b[i]) > likeLoad {
			return false
		}
	}
	return true
}

func (l *learning) medians() (all [capped]float64) {
	for i := range l {
		all[i] = l[i].median()
	}
	return all
}

// drifts puts the sums.
func (d *Metrics) drifts(c *card) {
	for i := range c.drift.sums {
		if c.drift.known && c.drift.sigma[i] > 0 {
			d.put(DriftCUSUM, c.watched[i].labels, c.drift.sums[i].larger())
		}
	}
}

// errorRate watches corrected errors: some are usual, more than usual for long
// is not.
type errorRate struct {
	Seen     bool                `json:"seen"` // the GPU counts them
	Minutes  [windowSize]float64 `json:"minutes"`
	Next     int                 `json:"next"`
	Minute   float64             `json:"minute"`   // errors of this minute
	Baseline float64             `json:"baseline"` // errors a minute; a healthy GPU's first is 0
	Sum      cusum               `json:"sum"`
}

// Limits of errors.
const (
	baselineTau = 24 * time.Hour
	burst       = 4.0 // most standard deviations that one minute counts: one burst is no trend
)

func (e *errorRate) add(rise float64) {
	if sum := e.Minute + rise; usable(sum) {
		e.Seen, e.Minute = true, sum
	}
}

// advance ends a minute. The scale is that of counts (Poisson). The baseline
// follows usual minutes within a day, and others slowly.
func (e *errorRate) advance() {
	sigma := math.Sqrt(max(e.Baseline, 1))
	usual := min(e.Minute, e.Baseline+burst*sigma)
	e.Sum.add((usual - e.Baseline) / sigma)
	e.Baseline = ewma(e.Baseline, usual, time.Minute, baselineTau)
	e.Minutes[e.Next%windowSize] = e.Minute
	e.Next = (e.Next + 1) % windowSize
	e.Minute = 0
}

// hour returns the errors of the last hour.
func (e *errorRate) hour() (sum float64) {
	for _, n := range e.Minutes {
		sum += n
	}
	return sum + e.Minute
}

// errors puts the metrics of corrected errors.
func (d *Metrics) errors(c *card, h *history) {
	if h.ECC.Seen {
		d.put(ECCCorrectablePerHour, c.labels, h.ECC.hour())
		d.put(ECCCorrectableCUSUM, c.labels, h.ECC.Sum.Up)
	}
	if h.PCIe.Seen {
		d.put(PCIeCorrectableCUSUM, c.labels, h.PCIe.Sum.Up)
	}
}
