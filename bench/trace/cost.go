package main

import (
	"math"
	"slices"

	"gpusteward/bench/worker"
)

// A block is a time in which a program wrote its trace, or not.
type block struct {
	from, to int64 // of CLOCK_MONOTONIC, ns
	traced   bool
}

// costSpan is the steps that are compared with each other.
const costSpan = 24

// costsOf returns, in percent and for each span, how much longer a step with the trace is than
// one without it; the median of the steps in ms; and how many steps had the trace. Of a step in
// which the trace came or went, a part had it.
func costsOf(ends []int64, blocks []block) (slower []float64, ms, traced float64) {
	var times, parts, logs []float64
	for n, b := 1, 0; n < len(ends); n++ {
		begin, end := ends[n-1], ends[n]
		for b < len(blocks) && blocks[b].to <= begin {
			b++
		}
		if b == len(blocks) {
			break
		}
		if begin < blocks[b].from || end <= begin {
			continue
		}
		with, known := int64(0), int64(0)
		for _, one := range blocks[b:] {
			if one.from >= end {
				break
			}
			within := min(end, one.to) - max(begin, one.from)
			if known += within; one.traced {
				with += within
			}
		}
		part := float64(with) / float64(known)
		traced += part
		times, parts, logs = append(times, float64(end-begin)), append(parts, part), append(logs, math.Log(float64(end-begin)))
	}
	for ; len(parts) >= costSpan; parts, logs = parts[costSpan:], logs[costSpan:] {
		if slope := slope(parts[:costSpan], logs[:costSpan]); !math.IsNaN(slope) {
			slower = append(slower, 100*math.Expm1(slope))
		}
	}
	return slower, worker.Percentile(times, 0.5) / 1e6, traced
}

// slope returns the least-squares slope of y over x, after the linear trends of both are removed. It
// is NaN if x is a straight line.
func slope(x, y []float64) float64 {
	var xx, xy float64
	x, y = unsteady(x), unsteady(y)
	for i := range x {
		xx, xy = xx+x[i]*x[i], xy+x[i]*y[i]
	}
	return xy / xx
}

// unsteady returns x without its linear trend.
func unsteady(x []float64) []float64 {
	middle := float64(len(x)-1) / 2
	var sum, turn, squares float64
	for i, v := range x {
		sum, turn, squares = sum+v, turn+v*(float64(i)-middle), squares+(float64(i)-middle)*(float64(i)-middle)
	}
	rest := make([]float64, len(x))
	for i, v := range x {
		rest[i] = v - sum/float64(len(x)) - turn/squares*(float64(i)-middle)
	}
	return rest
}

// medianWithin returns the median of x and its 95 % confidence interval. The interval is by ranks,
// so a few outliers do not matter.
func medianWithin(x []float64) (low, middle, high float64) {
	if len(x) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	x = slices.Clone(x)
	slices.Sort(x)
	n := float64(len(x))
	first := max(0, int((n-1.96*math.Sqrt(n))/2))
	return x[first], worker.Percentile(x, 0.5), x[len(x)-1-first]
}
