package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// subscribe registers for all event types of every GPU.
func subscribe(t *testing.T, h *Host) nvml.EventSet {
	t.Helper()
	set := must[nvml.EventSet](t)(h.EventSetCreate())
	for i := range must[int](t)(h.DeviceGetCount()) {
		d := gpuOf(t, h, i)
		check(t, d.RegisterEvents(must[uint64](t)(d.GetSupportedEventTypes()), set))
	}
	return set
}

// TestEvents waits for XIDs: they arrive on time, with their instances.
func TestEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gi, ci := uint32(7), uint32(0)
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Count: 2}}, Faults: []scenarios.Fault{
			{Kind: "xid", Code: 31, GPU: 1, At: scenarios.Duration(2500 * time.Millisecond),
				Every: scenarios.Duration(10 * time.Second)},
			{Kind: "xid", Code: 13, GPU: 0, At: scenarios.Duration(5 * time.Second), GI: &gi, CI: &ci},
		}}, Options{})
		set := subscribe(t, h)
		_, ret := set.Wait(0)
		want(t, "nothing yet", ret, nvml.ERROR_TIMEOUT)
		start := time.Now()
		_, ret = set.Wait(1000)
		want(t, "still nothing", ret, nvml.ERROR_TIMEOUT)
		if d := time.Since(start); d != time.Second {
			t.Errorf("the timeout took %v", d)
		}
		for _, wanted := range []struct {
			after time.Duration
			gpu   int
			code  uint64
			gi    uint32
		}{{2500 * time.Millisecond, 1, 31, noInstance}, {5 * time.Second, 0, 13, 7},
			{12500 * time.Millisecond, 1, 31, noInstance}, {22500 * time.Millisecond, 1, 31, noInstance}} {
			e, ret := set.Wait(60_000)
			check(t, ret)
			if d := time.Since(start); d != wanted.after {
				t.Errorf("an event came after %v, want %v", d, wanted.after)
			}
			if e.EventType != nvml.EventTypeXidCriticalError || e.EventData != wanted.code ||
				e.GpuInstanceId != wanted.gi {
				t.Errorf("event is %+v, want %+v", e, wanted)
			}
			if i := must[int](t)(e.Device.GetIndex()); i != wanted.gpu {
				t.Errorf("the event is of GPU %d, want %d", i, wanted.gpu)
			}
		}
		check(t, set.Free())
		_, ret = set.Wait(10)
		want(t, "a freed set", ret, nvml.ERROR_INVALID_ARGUMENT)
	})
}
