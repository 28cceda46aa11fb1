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
