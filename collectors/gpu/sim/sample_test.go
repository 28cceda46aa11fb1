package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestSamplesSinceLast reads a buffer piece by piece.
func TestSamplesSinceLast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := gpuOf(t, begin(t, embedded(t, "h100"), Options{}), 0)
		for kind, per := range map[nvml.SamplingType]int{nvml.TOTAL_POWER_SAMPLES: 10, nvml.GPU_UTILIZATION_SAMPLES: 5,
			nvml.DEC_UTILIZATION_SAMPLES: 5} {
			_, samples, ret := d.GetSamples(kind, 0)
			check(t, ret)
			seen := samples[len(samples)-1].TimeStamp
			_, _, ret = d.GetSamples(kind, seen)
			want(t, "nothing since", ret, nvml.ERROR_NOT_FOUND)
			for range 5 {
				time.Sleep(time.Second)
				_, samples, ret := d.GetSamples(kind, seen)
				check(t, ret)
				if len(samples) != per || samples[0].TimeStamp <= seen {
					t.Errorf("%d samples of kind %d in a second, want %d", len(samples), kind, per)
				}
				seen = samples[len(samples)-1].TimeStamp
			}
			if now := uint64(time.Now().UnixMicro()); now-seen > 100_000 {
				t.Errorf("the last sample is %d us old", now-seen)
			}
		}
	})
}

// TestGPMRefuses checks that invalid samples are refused.
func TestGPMRefuses(t *testing.T) {
	h := begin(t, embedded(t, "h100"), Options{})
	a, b := must[nvml.GpmSample](t)(h.GpmSampleAlloc()), must[nvml.GpmSample](t)(h.GpmSampleAlloc())
	want(t, "empty samples", h.GpmMetricsGet(&nvml.GpmMetricsGetType{Sample1: a, Sample2: b}),
		nvml.ERROR_INVALID_ARGUMENT)
	want(t, "no samples", h.GpmMetricsGet(&nvml.GpmMetricsGetType{}), nvml.ERROR_INVALID_ARGUMENT)
	check(t, a.Get(gpuOf(t, h, 0)))
	want(t, "equal samples", h.GpmMetricsGet(&nvml.GpmMetricsGetType{Sample1: a, Sample2: a}),
		nvml.ERROR_INVALID_ARGUMENT)
}
