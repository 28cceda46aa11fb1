package collectors_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/internal/fixture"
)

func TestPut(t *testing.T) {
	for _, c := range []struct {
		name        string
		v           float64
		ret         nvml.Return
		sample      bool
		failure     nvml.Return
		unsupported bool
	}{
		{"a reading", 5, nvml.SUCCESS, true, nvml.SUCCESS, false},
		{"not supported is an answer", 5, nvml.ERROR_NOT_SUPPORTED, false, nvml.SUCCESS, true},
		{"a missing symbol is an answer", 5, nvml.ERROR_FUNCTION_NOT_FOUND, false, nvml.SUCCESS, true},
		{"a failure is remembered", 5, nvml.ERROR_UNKNOWN, false, nvml.ERROR_UNKNOWN, false},
		{"no permission is a failure", 5, nvml.ERROR_NO_PERMISSION, false, nvml.ERROR_NO_PERMISSION, false},
		{"not a number is no reading", math.NaN(), nvml.SUCCESS, false, nvml.ERROR_NO_DATA, false},
		{"what no GPU draws is no reading", 4.3e6, nvml.SUCCESS, false, nvml.ERROR_NO_DATA, false},
		{"less than nothing is no reading", -1, nvml.SUCCESS, false, nvml.ERROR_NO_DATA, false},
		{"infinity is no reading", math.Inf(1), nvml.SUCCESS, false, nvml.ERROR_NO_DATA, false},
	} {
		r := &collectors.Readings{Prefix: []string{"0", "GPU-x"}}
		r.Put(device.PowerLimit, c.v, c.ret, "enforced")
		if got := len(r.Samples) == 1; got != c.sample || r.Failure != c.failure ||
			(len(r.Unsupported) == 1) != c.unsupported {
			t.Errorf("%s: sample %v, failure %v, unsupported %v", c.name, got, r.Failure, r.Unsupported)
		}
		if c.sample && !slices.Equal(r.Samples[0].Labels, []string{"0", "GPU-x", "enforced"}) {
			t.Errorf("%s: labels %v", c.name, r.Samples[0].Labels)
		}
	}
}

func TestLabelsAreFitForExposition(t *testing.T) {
	r := &collectors.Readings{}
	r.Set(device.DriverInfo, 1, strings.Repeat("x", 500), "a\xffb", strings.Repeat("é", 100), "")
	got := r.Samples[0].Labels
	if len(got[0]) != collectors.MaxLabel || got[1] != "ab" || got[2] != strings.Repeat("é", collectors.MaxLabel/2) {
		t.Errorf("labels %q", got)
	}
}

func TestAddOnlyRises(t *testing.T) {
	totals := map[string]float64{}
	last := 0.0
	for _, delta := range []float64{1, 0, 2.5, -3, math.NaN(), math.Inf(1), 1} {
		r := &collectors.Readings{Totals: totals}
		r.Add(activity.PCIeBytes, delta, "tx")
		if v := r.Samples[0].Value; v < last {
			t.Errorf("fell from %v to %v after %v", last, v, delta)
		} else {
			last = v
		}
	}
	fixture.Equal(t, last, 4.5, "total")
}

func TestScaledKeepsDecimals(t *testing.T) {
	for _, c := range []struct{ v, scale, want float64 }{{87704, 1e-3, 87.704}, {3, 1024, 3072}, {95, .01, .95},
		{8540708000, 1e-9, 8.540708}} {
		fixture.Equal(t, collectors.Scaled(c.v, c.scale), c.want, "scaled(%v, %v) =", c.v, c.scale)
	}
}
