package enforcer_test

import (
	"math"
	"math/rand/v2"
	"testing"
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
	return slower, percentile(times, 0.5) / 1e6, traced
}

// slope returns by how much y grows with x, by least squares, beside what both do steadily;
// NaN: x does nothing else.
func slope(x, y []float64) float64 {
	var xx, xy float64
	x, y = unsteady(x), unsteady(y)
	for i := range x {
		xx, xy = xx+x[i]*x[i], xy+x[i]*y[i]
	}
	return xy / xx
}

// unsteady returns what x has beside a straight line.
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

// TestCostsOf: what a trace costs is found in steps that change their pace, some of which
// something else disturbs.
func TestCostsOf(t *testing.T) {
	for _, cost := range []float64{0, 0.002, 0.02} {
		r := rand.New(rand.NewPCG(9, uint64(1e4*cost)))
		var blocks []block
		for at := int64(1e9); at < 201e9; {
			first := r.IntN(2) == 0
			for _, traced := range []bool{first, !first} {
				blocks = append(blocks, block{at, at + 100e6, traced})
				at += 100e6
			}
		}
		ends := []int64{5e8} // before the first block
		for at := ends[0]; at < 202e9; ends = append(ends, at) {
			step := 38e6 * (1 + 0.2*math.Sin(float64(at)/20e9) + 0.01*r.NormFloat64())
			if r.IntN(50) == 0 {
				step *= 1.5
			}
			for _, b := range blocks[max(0, min(int64(len(blocks)), at/100e6-10)):] {
				if b.from > at+int64(step) {
					break
				}
				if b.traced {
					step += cost * max(0, min(float64(at)+step, float64(b.to))-max(float64(at), float64(b.from)))
				}
			}
			at += int64(step)
		}
		slower, ms, traced := costsOf(ends, blocks)
		low, middle, high := medianWithin(slower)
		if low > 100*cost || high < 100*cost || high-low > 0.3 || math.Abs(ms-38) > 2 ||
			math.Abs(traced/float64(len(ends))-0.5) > 0.03 {
			t.Errorf("of %g %%: %.3f (%.3f to %.3f) %%, %.1f ms, %.0f of %d steps with the trace", 100*cost, middle, low, high,
				ms, traced, len(ends))
		}
	}
}
