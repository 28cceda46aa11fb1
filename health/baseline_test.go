package health

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A GPU drifts if a setting differs from its earlier value or from its
// siblings'. A host with whole and divided GPUs does not drift.
func TestConfigDrift(t *testing.T) {
	t.Parallel()
	host := func(mode, workload string, on func(gpu int) float64) *derived.Snapshot {
		var all []collectors.Sample
		for i := range 8 {
			gpu, uuid := fmt.Sprint(i), fmt.Sprint("GPU-", i)
			info := make([]string, len(device.Info.Labels))
			for at, l := range device.Info.Labels {
				info[at] = map[string]string{"gpu": gpu, "uuid": uuid, "name": "H100"}[l]
			}
			all = append(all, collectors.Sample{Metric: device.Info, Labels: info, Value: 1},
				collectors.Sample{Metric: device.ModeEnabled, Labels: []string{gpu, uuid, mode}, Value: on(i)})
			if workload != "" {
				all = append(all, collectors.Sample{Metric: workloads.WorkloadMemory, Labels: []string{gpu, uuid,
					workload, ""}, Value: 1e9})
			}
		}
		return derived.NewSnapshot(all)
	}
	odd := func(gpu int) float64 { return collectors.Bool(gpu == 7) }
	none := func(int) float64 { return 0 }
	all := func(int) float64 { return 1 }
	for _, c := range []struct {
		mode          string
		before, after func(int) float64
		was, is       string // the workload on the GPUs
		drifts        bool
	}{
		{"ecc", odd, odd, "", "", true},
		{"mig", odd, odd, "", "", false},
		{"mig", none, odd, "job", "job", true},
		{"mig", none, odd, "", "", false},
		{"mig", none, odd, "job", "other", false},
		{"persistence", none, odd, "", "", true}, // unlike its peers
		{"persistence", none, all, "job", "job", false},
		{"ecc", none, none, "job", "job", false},
	} {
		b, seen := baselines{}, &observed{settings: map[string]map[string]observation{}}
		b.drift(host(c.mode, c.was, c.before), seen, birth)
		for range 2 { // the drift persists
			b.drift(host(c.mode, c.is, c.after), seen, birth)
		}
		s := host(c.mode, "", c.after)
		b.drift(s, seen, birth)
		found := false
		for _, sample := range s.Of(ConfigDrift) {
			found = found || sample.Value == 1
		}
		fixture.Equal(t, found, c.drifts, "%s of %q, then %q: drift", c.mode, c.was, c.is)
	}
}

// If other jobs come and go beside a job, one of them may have changed a
// setting.
func TestSettingsChangedByAnotherJob(t *testing.T) {
	t.Parallel()
	o := observed{settings: map[string]map[string]observation{}}
	at := func(minutes int, jobs ...string) time.Time {
		o.watch(map[incident.Entity][]string{{GPU: "0"}: jobs}, birth.Add(time.Duration(minutes)*time.Minute))
		return o.turned
	}
	for i, jobs := range [][]string{{"a"}, {"a"}, {"a", "a"}} {
		if got := at(i, jobs...); !got.IsZero() {
			t.Errorf("%q at %d: turned at %v", jobs, i, got)
		}
	}
	if got := at(3, "b", "a"); !got.Equal(birth.Add(3 * time.Minute)) {
		t.Errorf("one came: turned at %v", got)
	}
}
