package main

import (
	"math"
	"time"

	"gpusteward/bench/worker"
)

// rates returns the steps a second within [from, to), and the lowest rate of any second of it. A
// shorter run has no worst second.
func rates(s worker.Series, from, to int64) (rate, worst float64) {
	rate = (s.By(to) - s.By(from)) / (float64(to-from) / 1e9)
	worst = rate
	for at := from; at+int64(time.Second) <= to; at += int64(100 * time.Millisecond) {
		worst = min(worst, s.By(at+int64(time.Second))-s.By(at))
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
