package exporter

import (
	"math"
	"net/http"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

// durations is a histogram with values next to each other and far apart.
var durations = collectors.Histogram{Buckets: map[int]uint64{-100: 1, -24: 4, -23: 2, -21: 3, 0: 5, 1: 6, 8: 7, 200: 8},
	Count: 36, Sum: 1000}

// serveDurations returns a server with one histogram.
func serveDurations(t *testing.T) *Server {
	m := &collectors.Metric{Name: "nvgpu_durations_seconds", Help: "Durations.", Type: collectors.HistogramType,
		Labels: []string{"gpu"}}
	return server(t, func(o *Options) {
		o.Samples = func() []collectors.Sample {
			return []collectors.Sample{{Metric: m, Labels: []string{"0"}, Value: 36, Histogram: &durations}}
		}
	})
}

// TestProtobufHasNativeBuckets decodes the spans again.
func TestProtobufHasNativeBuckets(t *testing.T) {
	t.Parallel()
	w := request(serveDurations(t), http.MethodGet, "/metrics", "Accept", protobuf)
	family := decoded(t, w)["nvgpu_durations_seconds"]
	fixture.Need(t, family.GetType(), dto.MetricType_HISTOGRAM, "the histogram is missing")
	h := family.Metric[0].Histogram
	got, i, n, deltas := map[int]uint64{}, 0, int64(0), h.PositiveDelta
	for _, span := range h.PositiveSpan {
		i += int(span.GetOffset())
		for range span.GetLength() {
			n += deltas[0]
			if deltas = deltas[1:]; n > 0 {
				got[i] = uint64(n)
			}
			i++
		}
	}
	if len(deltas) > 0 || h.GetSchema() != 3 || h.GetZeroThreshold() == 0 || h.GetSampleCount() != 36 ||
		h.GetSampleSum() != 1000 || len(h.PositiveSpan) != 5 {
		t.Errorf("%v", h)
	}
	for i, n := range durations.Buckets {
		if got[i] != n || len(got) != len(durations.Buckets) {
			t.Errorf("bucket %d has %d of %d values: %v", i, got[i], n, got)
		}
	}
	fixture.Equal(t, len(h.Bucket), 18, "classic buckets")
}

// TestTextHasClassicBuckets checks cumulative counts, which are exact at powers
// of two.
func TestTextHasClassicBuckets(t *testing.T) {
	t.Parallel()
	s := serveDurations(t)
	for _, accept := range []string{"text/plain", openMetrics} {
		text := request(s, http.MethodGet, "/metrics", "Accept", accept).Body.String()
		for _, line := range []string{
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.0009765625"} 1`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.125"} 5`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.25"} 10`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.5"} 10`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="1`, // OpenMetrics: 1.0
			`nvgpu_durations_seconds_bucket{gpu="0",le="+Inf"} 36`,
			`nvgpu_durations_seconds_count{gpu="0"} 36`,
		} {
			fixture.Contains(t, text, "\n"+line, "%s", accept)
		}
	}
	families := parse(t, request(s, http.MethodGet, "/metrics").Body)
	buckets := families["nvgpu_durations_seconds"].Metric[0].GetHistogram().GetBucket()
	for exponent, want := range map[int]uint64{-10: 1, -3: 5, -2: 10, 0: 15, 1: 28, 7: 28} {
		at := slices.IndexFunc(buckets, func(b *dto.Bucket) bool { return b.GetUpperBound() == math.Ldexp(1, exponent) })
		if at < 0 || buckets[at].GetCumulativeCount() != want {
			t.Errorf("2^%d: bucket %d, want %d values: %v", exponent, at, want, buckets)
		}
	}
}

func TestEmptyHistogram(t *testing.T) {
	t.Parallel()
	h := histogram(&collectors.Histogram{})
	if h.GetSampleCount() != 0 || len(h.PositiveSpan) != 0 || len(h.Bucket) == 0 {
		t.Errorf("%v", h)
	}
}
