package worker

import (
	"math"
	"slices"
	"sort"
)

// A Series is a program's progress: moments of CLOCK_MONOTONIC in ns, and the steps completed by
// each of them, in the order of time.
type Series struct {
	At    []int64
	Steps []float64
}

// Add appends a point. A point that is not later than the last one replaces its count: a worker
// that prints late does not make time run backwards.
func (s *Series) Add(at int64, steps float64) {
	if n := len(s.At); n > 0 && at <= s.At[n-1] {
		s.Steps[n-1] = max(s.Steps[n-1], steps)
		return
	}
	s.At, s.Steps = append(s.At, at), append(s.Steps, steps)
}

// By returns the steps completed by a moment, interpolated between the two points around it, so
// that a window need not begin at a point.
func (s *Series) By(at int64) float64 {
	i := sort.Search(len(s.At), func(i int) bool { return s.At[i] >= at })
	switch {
	case len(s.At) == 0:
		return 0
	case i == 0:
		return s.Steps[0]
	case i == len(s.At):
		return s.Steps[i-1]
	}
	part := float64(at-s.At[i-1]) / float64(s.At[i]-s.At[i-1])
	return s.Steps[i-1] + part*(s.Steps[i]-s.Steps[i-1])
}

// Percentile returns the value below which a part p of x lies. It is the nearest rank, so it is
// always a measured value. It is NaN if x is empty.
func Percentile(x []float64, p float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Clone(x)
	slices.Sort(x)
	return x[max(0, int(math.Ceil(p*float64(len(x))))-1)]
}
