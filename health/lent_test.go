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

// TestJobSettingHoldsForATime changes a GPU's setting under a permanent
// workload, some time after another job came to the host. The change counts as
// the job's if that was at most an hour ago, and for four hours.
func TestJobSettingHoldsForATime(t *testing.T) {
	t.Parallel()
	limit := func(watts float64) collectors.Sample { return on("0", device.PowerLimit, watts, "enforced") }
	ecc := func(v float64) collectors.Sample { return on("0", device.ModeEnabled, 1-v/700, "ecc") }
	for name, c := range map[string]struct {
		setting func(watts float64) collectors.Sample
		after   time.Duration // from the job to the change
		alone   bool          // no other job comes
		held    time.Duration // time since the change
		drifts  bool
	}{
		"at once":                      {limit, 0, false, 0, false},
		"after an hour":                {limit, time.Hour, false, 0, false},
		"after more than an hour":      {limit, time.Hour + step, false, 0, true},
		"for nearly four hours":        {limit, step, false, 4*time.Hour - step, false},
		"for four hours":               {limit, step, false, 4 * time.Hour, true},
		"no other job has come":        {limit, 0, true, 0, true},
		"a setting that is never lent": {ecc, 0, false, 0, true},
	} {
		b, o, drifts := baselines{}, &observed{settings: map[string]map[string]observation{}}, false
		look := func(watts float64, at time.Time, jobs ...string) {
			all := []collectors.Sample{c.setting(watts)}
			for _, job := range jobs {
				all = append(all, on("0", workloads.WorkloadMemory, 1e9, job, ""))
			}
			s := derived.NewSnapshot(all)
			b.drift(s, o, at)
			drifts = s.Of(ConfigDrift)[0].Value == 1
		}
		jobs := []string{"stays", "comes"}
		if c.alone {
			jobs = jobs[:1]
		}
		look(700, birth, "stays")
		came := birth.Add(time.Minute)
		look(700, came, jobs...)
		changed := came.Add(c.after)
		for passed := time.Duration(0); passed <= c.held; passed += max(step, c.held/8) {
			look(600, changed.Add(passed), jobs...)
		}
		look(600, changed.Add(c.held), jobs...)
		fixture.Equal(t, drifts, c.drifts, "%s: drift", name)
		if look(700, changed.Add(c.held+step), jobs...); drifts {
			t.Errorf("%s: it drifts where it is set back", name)
		}
	}
}

// TestNodePersistenceDoesNotHideOtherDrift lets a GPU lose both persistence
// mode and ECC. The node reports the former, and the GPU the latter.
func TestNodePersistenceDoesNotHideOtherDrift(t *testing.T) {
	t.Parallel()
	b, o := baselines{}, &observed{settings: map[string]map[string]observation{}}
	var s *derived.Snapshot
	for i, v := range []float64{1, 0} {
		s = derived.NewSnapshot([]collectors.Sample{on("0", workloads.WorkloadMemory, 1e9, "stays", ""),
			on("0", device.ModeEnabled, v, "ecc"), on("0", device.ModeEnabled, v, "persistence")})
		b.drift(s, o, birth.Add(time.Duration(i)*step))
	}
	for gpu, want := range map[string]string{"": "persistence 0 1", "0": "ecc 0 1"} {
		for _, x := range s.Of(ConfigDrift) {
			if text := x.Labels[2] + " " + x.Labels[3] + " " + x.Labels[4]; x.Labels[0] == gpu &&
				(x.Value == 1) != (text == want) {
				t.Errorf("GPU %q: %s: %v", gpu, text, x.Value)
			}
		}
	}
}

// TestSettingsOfMostGPUs checks how many GPUs of a model define a usual
// setting: more than two thirds of at least four. Of two GPUs, both must agree.
func TestSettingsOfMostGPUs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		has    string // by GPU
		usual  string // empty: they do not agree
		unlike bool
	}{
		{"1", "", true}, {"11", "", false}, {"111", "", false}, {"1111", "1", false}, {"1110", "1", true},
		{"1100", "", true}, {"11110", "1", true}, {"11100", "", true},
		{"111100", "", true}, {"111110", "1", true}, {"11111000", "", true}, {"11111100", "1", true},
		{"000001", "0", true}, {"111 1", "1", false}, {"111 ", "", false},
	} {
		all := map[incident.Entity]baseline{{GPU: "9"}: {"model": "other", "ecc": "0"}}
		for i, v := range c.has {
			all[gpuEntity(fmt.Sprint(i))] = baseline{"model": "H100", "ecc": string(v)}
			if v == ' ' {
				delete(all[gpuEntity(fmt.Sprint(i))], "ecc")
			}
		}
		usual, agreed := common(all, "H100", "ecc")
		if agreed != (c.usual != "") || agreed && usual != c.usual || uniform(all, "H100", "ecc") == c.unlike {
			t.Errorf("%q: %q is usual: %v, and all are alike: %v", c.has, usual, agreed, uniform(all, "H100", "ecc"))
		}
	}
}
