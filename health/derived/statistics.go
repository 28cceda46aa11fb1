package derived

import (
	"math"
	"slices"
	"time"
)

// madToSigma is the ratio of the standard deviation of normal noise to its
// median absolute deviation: 1 / quantile(3/4).
const madToSigma = 1.4826

// usable reports whether v is a finite number.
func usable(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Median returns the median of values, and reorders them; NaN if there are
// none.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	high := rank(values, n/2)
	if n%2 == 1 {
		return high
	}
	return (slices.Max(values[:n/2]) + high) / 2
}

// mad returns the median absolute deviation of values from center, and replaces
// the values by the deviations.
func mad(values []float64, center float64) float64 {
	for i, v := range values {
		values[i] = math.Abs(v - center)
	}
	return Median(values)
}

// rank returns the k-th smallest value, from 0. It moves the values that are no
// larger before it (Hoare's quickselect).
func rank(values []float64, k int) float64 {
	for low, high := 0, len(values)-1; low < high; {
		pivot := values[(low+high)/2]
		i, j := low, high
		for i <= j {
			for values[i] < pivot {
				i++
			}
			for values[j] > pivot {
				j--
			}
			if i <= j {
				values[i], values[j] = values[j], values[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case k <= j:
			high = j
		case k >= i:
			low = i
		default:
			return values[k]
		}
	}
	return values[k]
}

// zscore returns the distance of v from center in standard deviations. The
// floor is the least standard deviation to believe in: a sensor that shows the
// same number for an hour still has its resolution. If both are 0, so is the
// score.
func zscore(v, center, sigma, floor float64) float64 {
	if sigma = max(sigma, floor); sigma == 0 {
		return 0
	}
	return (v - center) / sigma
}

// robustZ is zscore with the median and the median absolute deviation, which a
// minority of wild samples does not move.
func robustZ(v, median, mad, floor float64) float64 {
	return zscore(v, median, madToSigma*mad, floor)
}

// theilSen returns the median of the slopes between all pairs of points, and
// its 95 % confidence interval by Sen's ranks (Sen 1968, with the correction
// for tied values). A fifth of wild points does not move it. All results are
// NaN if fewer than three points have distinct times. The slopes use room if it
// is large enough.
func theilSen(times, values, room []float64) (slope, low, high float64) {
	slopes := room[:0]
	for i := range times {
		for j := range i {
			if dt := times[i] - times[j]; dt != 0 {
				slopes = append(slopes, (values[i]-values[j])/dt)
			}
		}
	}
	n := len(slopes)
	if n < 3 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	reach := 1.96 * math.Sqrt(kendallVariance(values))
	first := max(int(math.Floor((float64(n)-reach)/2)), 0)
	last := min(int(math.Ceil((float64(n)+reach)/2)), n-1)
	slope = Median(slopes)
	return slope, rank(slopes, first), rank(slopes, last)
}

// kendallVariance returns the variance of Kendall's S over values without
// order.
func kendallVariance(values []float64) float64 {
	of := func(n int) float64 { return float64(n*(n-1)*(2*n+5)) / 18 }
	variance := of(len(values))
	for i, v := range values {
		if slices.Contains(values[:i], v) {
			continue
		}
		ties := 1
		for _, later := range values[i+1:] {
			if later == v {
				ties++
			}
		}
		variance -= of(ties)
	}
	return variance
}

// ewma moves a forgetful mean towards v: values that are older than tau by dt
// weigh 1/e. A mean that is not a number yet becomes v.
func ewma(mean, v float64, dt, tau time.Duration) float64 {
	if !usable(mean) {
		return v
	}
	return mean + (v-mean)*-math.Expm1(-dt.Seconds()/tau.Seconds())
}

// Limits of cumulative sums, in standard deviations.
const (
	cusumSlack = 0.5 // deviation of a sample that does not count: half of the shift to find
	cusumMost  = 100 // so that it comes down soon after a long fault
)

// A cusum is Page's cumulative sum on both sides: shifts too small for one
// sample add up.
type cusum struct {
	Up   float64 `json:"up"`
	Down float64 `json:"down"`
}

// add takes the next sample, in standard deviations from the baseline.
func (c *cusum) add(z float64) {
	c.Up = min(max(0, c.Up+z-cusumSlack), cusumMost)
	c.Down = min(max(0, c.Down-z-cusumSlack), cusumMost)
}

// larger returns the larger of both sums, negative for the lower side.
func (c *cusum) larger() float64 {
	if c.Down > c.Up {
		return -c.Down
	}
	return c.Up
}
