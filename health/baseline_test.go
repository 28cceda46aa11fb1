package health

import (
	"fmt"
	"testing"

	"gpusteward/collectors"
)

// A GPU drifts where a setting of it is no longer what it was, or not what its
// siblings have; but some GPUs whole and some in parts is no drift.
func TestConfigDrift(t *testing.T) {
	t.Parallel()
	host := func(mode string, on func(gpu int) float64) *Snapshot {
		var all []collectors.Sample
		for i := range 8 {
			gpu, uuid := fmt.Sprint(i), fmt.Sprint("GPU-", i)
			info := make([]string, len(collectors.Info.Labels))
			for at, l := range collectors.Info.Labels {
				info[at] = map[string]string{"gpu": gpu, "uuid": uuid, "name": "H100"}[l]
			}
			all = append(all, collectors.Sample{Metric: collectors.Info, Labels: info, Value: 1},
				collectors.Sample{Metric: collectors.ModeEnabled, Labels: []string{gpu, uuid, mode}, Value: on(i)})
		}
		return NewSnapshot(all)
	}
	odd := func(gpu int) float64 { return collectors.Bool(gpu == 7) }
	none := func(int) float64 { return 0 }
	for _, c := range []struct {
		mode          string
		before, after func(int) float64
		drifts        bool
	}{
		{"ecc", odd, odd, true},
		{"mig", odd, odd, false},
		{"mig", none, odd, true},
		{"ecc", none, none, false},
	} {
		b := baselines{}
		b.drift(host(c.mode, c.before))
		s := host(c.mode, c.after)
		b.drift(s)
		found := false
		for _, sample := range s.Of(ConfigDrift) {
			found = found || sample.Value == 1
		}
		if found != c.drifts {
			t.Errorf("%s: drift %v, want %v", c.mode, found, c.drifts)
		}
	}
}
