package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// TestWedge checks that a wedged GPU blocks only its callers, until the window
// ends.
func TestWedge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "wedged"), Options{Seed: 1})
		stuck, other := gpuOf(t, h, 3), gpuOf(t, h, 2)
		time.Sleep(25 * time.Second)
		start := time.Now()
		done := make(chan time.Duration)
		for range 3 {
			go func() {
				_, ret := stuck.GetPowerUsage()
				want(t, "after the window", ret, nvml.SUCCESS)
				done <- time.Since(start)
			}()
		}
		synctest.Wait()
		must[uint32](t)(other.GetPowerUsage())
		gpuOf(t, h, 3) // the host answers for handles
		if d := time.Since(start); d != 0 {
			t.Errorf("another GPU took %v", d)
		}
		for range 3 {
			if d := <-done; d != 55*time.Second {
				t.Errorf("the wedged GPU took %v, want 55s", d)
			}
		}
		must[uint32](t)(stuck.GetPowerUsage())
	})
}

// TestWedgeOfOneCall checks that a wedge can be limited to a call.
func TestWedgeOfOneCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := scenarios.Fault{Kind: "wedge", Call: "nvmlDeviceGetFieldValues", For: scenarios.Duration(time.Minute)}
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}}, Faults: []scenarios.Fault{f}}, Options{Speed: 2})
		d := gpuOf(t, h, 0)
		must[uint32](t)(d.GetPowerUsage())
		start := time.Now()
		check(t, d.GetFieldValues(make([]nvml.FieldValue, 1)))
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("fields took %v, want 30s at speed 2", d)
		}
	})
}

// TestWedgeOfTheHost checks that a call on the host can hang, including the one
// that finds a GPU.
func TestWedgeOfTheHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, err := New(scenarios.Scenario{GPUs: []scenarios.GPU{{Count: 2}}, Faults: []scenarios.Fault{
			{Kind: "wedge", Call: "nvmlInit", For: scenarios.Duration(10 * time.Second)},
			{Kind: "wedge", Call: "nvmlDeviceGetCount", For: scenarios.Duration(20 * time.Second)},
			{Kind: "wedge", Call: "nvmlDeviceGetHandleByIndex", GPU: 1, For: scenarios.Duration(30 * time.Second)},
			{Kind: "error", Call: "nvmlSystemGetDriverVersion", Return: "ERROR_NO_PERMISSION",
				For: scenarios.Duration(30 * time.Second)},
		}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		took := func(what string, wanted time.Duration) {
			t.Helper()
			if d := time.Since(h.start); d != wanted {
				t.Errorf("%s is done after %v, want %v", what, d, wanted)
			}
		}
		check(t, h.Init())
		took("nvmlInit", 10*time.Second)
		_, ret := h.SystemGetDriverVersion()
		want(t, "an error of the host", ret, nvml.ERROR_NO_PERMISSION)
		d := gpuOf(t, h, 0)
		must[string](t)(d.GetName())
		took("another GPU", 10*time.Second)
		must[int](t)(h.DeviceGetCount())
		took("nvmlDeviceGetCount", 20*time.Second)
		gpuOf(t, h, 1)
		took("nvmlDeviceGetHandleByIndex", 30*time.Second)
		must[string](t)(h.SystemGetDriverVersion())
	})
}

// TestCloseReleases checks that Close ends a wedge without end.
func TestCloseReleases(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}},
			Faults: []scenarios.Fault{{Kind: "wedge", At: scenarios.Duration(time.Second)}}}, Options{})
		d := gpuOf(t, h, 0)
		time.Sleep(time.Second)
		done := make(chan nvml.Return)
		go func() {
			_, ret := d.GetPowerUsage()
			done <- ret
		}()
		time.Sleep(time.Hour)
		select {
		case <-done:
			t.Fatal("released without Close")
		default:
		}
		h.Close()
		want(t, "after Close", <-done, nvml.ERROR_UNKNOWN)
		h.Close()
	})
}
