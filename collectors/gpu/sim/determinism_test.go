package sim

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// snapshot returns everything that a GPU reports, as text.
func snapshot(t *testing.T, d *device) string {
	t.Helper()
	all := map[string]any{}
	for name, c := range recordedCalls {
		v, ret := c.call(d)
		all[name] = []any{v, ret}
	}
	values := make([]nvml.FieldValue, nvml.FI_MAX-1)
	for i := range values {
		values[i].FieldId = uint32(i + 1)
	}
	check(t, d.GetFieldValues(values))
	all["fields"] = values
	_, power, _ := d.GetSamples(nvml.TOTAL_POWER_SAMPLES, 0)
	_, usage, _ := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, 0)
	procs, _ := d.GetComputeRunningProcesses()
	use, _ := d.GetProcessUtilization(0)
	uuid, _ := d.GetUUID()
	all["samples"], all["processes"], all["uuid"] = []any{power, usage}, []any{procs, use}, uuid
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSeedDecides checks that equal seeds give equal hosts, whatever the order
// of the reads, and that different seeds do not.
func TestSeedDecides(t *testing.T) {
	for _, name := range []string{"mixed", "models", "faults"} {
		bubble(t, func(t *testing.T) {
			s := embedded(t, name)
			read, unread, other := begin(t, s, Options{Seed: 3}), begin(t, s, Options{Seed: 3}),
				begin(t, s, Options{Seed: 4})
			n := must[int](t)(read.DeviceGetCount())
			for range 27 {
				time.Sleep(333 * time.Millisecond)
				for i := range n {
					snapshot(t, gpuOf(t, read, i))
				}
			}
			for i := range n {
				a := snapshot(t, gpuOf(t, read, i))
				if b := snapshot(t, gpuOf(t, unread, i)); a != b {
					t.Errorf("%s GPU %d: equal seeds differ:\n%s\n%s", name, i, a, b)
				}
				if b := snapshot(t, gpuOf(t, other, i)); a == b {
					t.Errorf("%s GPU %d: different seeds agree", name, i)
				}
			}
		})
	}
}

// TestSpeed checks that a fast host reaches a state earlier than a slow one.
func TestSpeed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := embedded(t, "mixed")
		fast, slow := begin(t, s, Options{Speed: 60}), begin(t, s, Options{})
		time.Sleep(10 * time.Second)
		a := gpuOf(t, fast, 0)
		energy := must[uint64](t)(a.GetTotalEnergyConsumption())
		_, samples, ret := a.GetSamples(nvml.TOTAL_POWER_SAMPLES, 0)
		check(t, ret)
		stamp := samples[len(samples)-1].TimeStamp
		time.Sleep(590 * time.Second)
		b := gpuOf(t, slow, 0)
		if later := must[uint64](t)(b.GetTotalEnergyConsumption()); later != energy {
			t.Errorf("energy is %d mJ after 10 s at speed 60, %d after 600 s at speed 1", energy, later)
		}
		_, samples, ret = b.GetSamples(nvml.TOTAL_POWER_SAMPLES, 0)
		check(t, ret)
		if later := samples[len(samples)-1].TimeStamp; later != stamp {
			t.Errorf("last sample is at %d and %d", stamp, later)
		}
	})
}
