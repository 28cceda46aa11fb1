package derived

import (
	"math"
	"slices"
)

// windowSize is the number of samples of a window: ten minutes at 10 s, an hour
// at a minute.
const windowSize = 60

// A window holds the last samples of a series, in the order of arrival and in
// the order of size: reading the median is cheap, and a sample costs a shift of
// at most windowSize numbers. The zero window is empty.
type window struct {
	values, sorted [windowSize]float64
	n, next        int
}

// push adds a sample, which must be finite, and forgets the oldest if the
// window is full.
func (w *window) push(v float64) {
	if w.n == windowSize {
		at, _ := slices.BinarySearch(w.sorted[:], w.values[w.next])
		copy(w.sorted[at:], w.sorted[at+1:])
		w.n--
	}
	at, _ := slices.BinarySearch(w.sorted[:w.n], v)
	copy(w.sorted[at+1:w.n+1], w.sorted[at:w.n])
	w.sorted[at] = v
	w.values[w.next] = v
	w.n, w.next = w.n+1, (w.next+1)%windowSize
}

// median returns the median; NaN of an empty window.
func (w *window) median() float64 {
	if w.n == 0 {
		return math.NaN()
	}
	return (w.sorted[(w.n-1)/2] + w.sorted[w.n/2]) / 2
}

// mad returns the median of the distances from center. The distances below and
// above are sorted already: mad merges them up to the middle.
func (w *window) mad(center float64) float64 {
	if w.n == 0 {
		return math.NaN()
	}
	above, _ := slices.BinarySearch(w.sorted[:w.n], center)
	below := above - 1
	var last, before float64
	for range w.n/2 + 1 {
		before = last
		switch {
		case above >= w.n || below >= 0 && center-w.sorted[below] <= w.sorted[above]-center:
			last = center - w.sorted[below]
			below--
		default:
			last = w.sorted[above] - center
			above++
		}
	}
	if w.n%2 == 1 {
		return last
	}
	return (before + last) / 2
}

// moments returns the mean and the standard deviation. They are computed anew
// each time: running sums of squares lose precision for good.
func (w *window) moments() (mean, deviation float64) {
	for _, v := range w.sorted[:w.n] {
		mean += v
	}
	mean /= float64(w.n)
	for _, v := range w.sorted[:w.n] {
		deviation += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(deviation / float64(max(w.n-1, 1)))
}
