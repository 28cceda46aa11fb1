package collectors

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
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
		r := &Readings{Prefix: []string{"0", "GPU-x"}}
		r.Put(PowerLimit, c.v, c.ret, "enforced")
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
	r := &Readings{}
	r.Set(DriverInfo, 1, strings.Repeat("x", 500), "a\xffb", strings.Repeat("é", 100), "")
	got := r.Samples[0].Labels
	if len(got[0]) != maxLabel || got[1] != "ab" || got[2] != strings.Repeat("é", maxLabel/2) {
		t.Errorf("labels %q", got)
	}
}

func TestSeriesAreBounded(t *testing.T) {
	r := &Readings{}
	for i := range maxSeries + 7 {
		r.Set(MissingSymbol, 1, fmt.Sprint(i))
	}
	if len(r.Samples) != maxSeries || r.Dropped[MissingSymbol] != 7 {
		t.Errorf("%d samples, dropped %v; want %d and 7", len(r.Samples), r.Dropped, maxSeries)
	}
	h := &Host{errors: map[collectError]uint64{}, dropped: map[string]uint64{}}
	h.account(&pass{collector: &Collector{}}, r.Dropped)
	if h.dropped[MissingSymbol.Name] != 7 {
		t.Errorf("accounted %v", h.dropped)
	}
}

func TestAddOnlyRises(t *testing.T) {
	totals := map[string]float64{}
	last := 0.0
	for _, delta := range []float64{1, 0, 2.5, -3, math.NaN(), math.Inf(1), 1} {
		r := &Readings{Totals: totals}
		r.Add(PCIeBytes, delta, "tx")
		if v := r.Samples[0].Value; v < last {
			t.Errorf("fell from %v to %v after %v", last, v, delta)
		} else {
			last = v
		}
	}
	if last != 4.5 {
		t.Errorf("total %v, want 4.5", last)
	}
}

func TestScaledKeepsDecimals(t *testing.T) {
	for _, c := range []struct{ v, scale, want float64 }{{87704, 1e-3, 87.704}, {3, 1024, 3072}, {95, .01, .95},
		{8540708000, 1e-9, 8.540708}} {
		if got := Scaled(c.v, c.scale); got != c.want {
			t.Errorf("scaled(%v, %v) = %v, want %v", c.v, c.scale, got, c.want)
		}
	}
}

func TestPassGoesStale(t *testing.T) {
	began, ended := time.Unix(1e9, 0), time.Unix(1e9+7, 0)
	p := &pass{began: began, ended: ended, due: 10 * time.Second}
	for age, want := range map[time.Duration]bool{0: true, 20 * time.Second: true, 20*time.Second + 1: false} {
		if got := p.fresh(ended.Add(age)); got != want {
			t.Errorf("fresh after %v of a 10 s interval: %v, want %v", age, got, want)
		}
	}
	if static := (&pass{began: began}); !static.fresh(began.Add(time.Hour)) {
		t.Error("a value that is read once is stale after an hour")
	}
}

func TestBitErrorRate(t *testing.T) {
	// Mantissa 5 (bits 8 to 11), exponent 12 (bits 0 to 7).
	if got := bitErrorRate(5<<8 | 12); math.Abs(got-5e-12) > 1e-20 {
		t.Errorf("bitErrorRate = %v, want 5e-12", got)
	}
}
