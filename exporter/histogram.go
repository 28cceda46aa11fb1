package exporter

import (
	"maps"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"

	"gpusteward/collectors"
)

// The buckets of a histogram. A power of two ends both a native bucket and a
// classic one, so that classic counts are exact.
const (
	schema      = 3                     // a native bucket spans a factor of 2^(1/8)
	perDoubling = 1 << schema           // native buckets
	least, most = -10, 7                // classic bounds: 2^-10 (1 ms) to 2^7 (2 min)
	spansApart  = 2                     // empty native buckets that cost less than a new span
	zero        = 2.938735877055719e-39 // Prometheus's default for the bucket of zeros
)

// histogram converts h to Prometheus's: native buckets, which only protobuf
// carries, and classic ones for all others.
func histogram(h *collectors.Histogram) *dto.Histogram {
	out := &dto.Histogram{SampleCount: &h.Count, SampleSum: &h.Sum, Schema: new(int32(schema)),
		ZeroThreshold: new(zero), ZeroCount: new(uint64(0))}
	indices := slices.Sorted(maps.Keys(h.Buckets))
	native(out, h, indices)
	classic(out, h, indices)
	return out
}

// native adds the native buckets: spans of consecutive ones, and the difference
// of each to the one before.
func native(out *dto.Histogram, h *collectors.Histogram, indices []int) {
	next, before := 0, int64(0) // the bucket after the last one, and the count of the last one
	add := func(n int64) {
		out.PositiveDelta = append(out.PositiveDelta, n-before)
		before = n
		*out.PositiveSpan[len(out.PositiveSpan)-1].Length++
		next++
	}
	for _, i := range indices {
		if gap := i - next; len(out.PositiveSpan) == 0 || gap > spansApart {
			out.PositiveSpan = append(out.PositiveSpan, &dto.BucketSpan{Offset: new(int32(gap)), Length: new(uint32(0))})
			next = i
		}
		for next < i {
			add(0)
		}
		add(int64(h.Buckets[i]))
	}
}

// classic adds the classic buckets, whose counts are cumulative.
func classic(out *dto.Histogram, h *collectors.Histogram, indices []int) {
	n := uint64(0)
	for exponent := least; exponent <= most; exponent++ {
		for len(indices) > 0 && indices[0] <= exponent*perDoubling {
			n += h.Buckets[indices[0]]
			indices = indices[1:]
		}
		out.Bucket = append(out.Bucket,
			&dto.Bucket{UpperBound: new(math.Ldexp(1, exponent)), CumulativeCount: new(n)})
	}
}
