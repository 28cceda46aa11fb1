package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestWedge shows that a wedged GPU blocks its callers only, until the window
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
		gpuOf(t, h, 3) // handles are the host's business
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

// TestWedgeOfOneCall shows that a wedge may be limited to a call.
func TestWedgeOfOneCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := Fault{Kind: "wedge", Call: "nvmlDeviceGetFieldValues", For: Duration(time.Minute)}
		h := begin(t, Scenario{GPUs: []GPU{{}}, Faults: []Fault{f}}, Options{Speed: 2})
		d := gpuOf(t, h, 0)
		must[uint32](t)(d.GetPowerUsage())
		start := time.Now()
		check(t, d.GetFieldValues(make([]nvml.FieldValue, 1)))
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("fields took %v, want 30s at speed 2", d)
		}
	})
}

// TestCloseReleases shows that Close ends a wedge that has no end.
func TestCloseReleases(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, Scenario{GPUs: []GPU{{}}, Faults: []Fault{{Kind: "wedge", At: Duration(time.Second)}}}, Options{})
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
