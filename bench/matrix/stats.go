package main

import (
	"math"
	"sort"
	"time"
)

// A series is a program's progress: points (CLOCK_MONOTONIC ns, completed steps)
// in the order of time.
type series struct {
	at    []int64
	steps []float64
}

// add appends a point. A point that is not later than the last one replaces
// its count: a worker that prints late does not make time run backwards.
func (s *series) add(at int64, steps float64) {
	if n := len(s.at); n > 0 && at <= s.at[n-1] {
		s.steps[n-1] = max(s.steps[n-1], steps)
		return
	}
	s.at, s.steps = append(s.at, at), append(s.steps, steps)
}

// by returns the steps completed by a moment, interpolated between the two
// points around it, so that a window need not begin at a point.
func (s *series) by(at int64) float64 {
	i := sort.Search(len(s.at), func(i int) bool { return s.at[i] >= at })
	switch {
	case len(s.at) == 0:
		return 0
	case i == 0:
		return s.steps[0]
	case i == len(s.at):
		return s.steps[i-1]
	}
	part := float64(at-s.at[i-1]) / float64(s.at[i]-s.at[i-1])
	return s.steps[i-1] + part*(s.steps[i]-s.steps[i-1])
}

// rates returns the steps a second within [from, to), and the lowest rate of any second of it. A
// shorter run has no worst second.
func (s *series) rates(from, to int64) (rate, worst float64) {
	rate = (s.by(to) - s.by(from)) / (float64(to-from) / 1e9)
	worst = rate
	for at := from; at+int64(time.Second) <= to; at += int64(100 * time.Millisecond) {
		worst = min(worst, s.by(at+int64(time.Second))-s.by(at))
	}
	return rate, worst
}

// confidence returns the mean of x and the half width of its 95 % confidence
// interval by Student's t, which matters for a few blocks. The half width of one value is NaN.
func confidence(x []float64) (middle, half float64) {
	t95 := []float64{math.NaN(), 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14,
		2.13, 2.12, 2.11, 2.10, 2.09, 2.09}
	n := float64(len(x))
	for _, v := range x {
		middle += v / n
	}
	squares := 0.0
	for _, v := range x {
		squares += (v - middle) * (v - middle)
	}
	t := 2.0
	if len(x) <= len(t95) {
		t = t95[max(0, len(x)-1)]
	}
	return middle, t * math.Sqrt(squares/max(1, n-1)/n)
}
