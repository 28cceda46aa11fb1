package enforcer_test

import (
	"math"
	"slices"
	"time"

	bench "gpusteward/bench/worker"
)

// A series is a worker's progress, and what its steps cost.
type series struct {
	bench.Series
	cost float64 // GPU seconds of a step, or 1 if all workers' steps are the same
}

// work returns the cost of the steps completed within [from, to).
func (s *series) work(from, to int64) float64 { return (s.By(to) - s.By(from)) * s.cost }

// shares returns each worker's part of all work completed within [from, to), 0 to 1; nil if nothing was completed.
func shares(all []*series, from, to int64) []float64 {
	parts, sum := make([]float64, len(all)), 0.0
	for i, s := range all {
		parts[i] = s.work(from, to)
		sum += parts[i]
	}
	if sum == 0 {
		return nil
	}
	for i := range parts {
		parts[i] /= sum
	}
	return parts
}

// An errs describes the distances of shares from their targets, in points
// (percent of the GPU), over sliding windows of one length.
type errs struct{ max, median, p99 float64 }

// deviation slides a window over [from, to) in tenths of a second. A window's error is that of the worker that is
// furthest from its target. A window without a completed step counts as wholly wrong.
func deviation(all []*series, target []float64, from, to int64, window time.Duration) errs {
	var found []float64
	for at := from; at+int64(window) <= to; at += int64(100 * time.Millisecond) {
		worst := 100.0
		if parts := shares(all, at, at+int64(window)); parts != nil {
			worst = 0
			for i := range parts {
				worst = max(worst, 100*math.Abs(parts[i]-target[i]))
			}
		}
		found = append(found, worst)
	}
	if len(found) == 0 {
		return errs{math.NaN(), math.NaN(), math.NaN()}
	}
	return errs{slices.Max(found), percentile(found, 0.5), percentile(found, 0.99)}
}

// typical returns what each worker does in a typical second: the median of all.
func typical(all []*series, from, to int64) []float64 {
	each := make([]float64, len(all))
	for i, s := range all {
		var seconds []float64
		for at := from; at+1e9 <= to; at += 1e9 {
			seconds = append(seconds, s.work(at, at+1e9))
		}
		each[i] = percentile(seconds, 0.5)
	}
	return each
}

var percentile = bench.Percentile
