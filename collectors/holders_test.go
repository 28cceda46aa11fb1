package collectors

import (
	"testing"
	"time"
)

func TestHoldsIsWhatTheDriverLists(t *testing.T) {
	in(t, "workloads", DefaultConfig(), func(t *testing.T, h *Host) {
		advance(3 * time.Second)
		first, second := told(h, Up, "gpu", "0")["uuid"], told(h, Up, "gpu", "1")["uuid"]
		for _, c := range []struct {
			uuid string
			pid  int
			want bool
		}{{first, vllmPID, true}, {second, vllmPID, false}, {first, 999999, false}, {"GPU-none", vllmPID, false}} {
			bytes, at, got := h.Holds(c.uuid, c.pid)
			known := time.Since(at) < 2*time.Second
			if got != c.want || known != (c.uuid != "GPU-none") || (bytes > 0) != c.want {
				t.Errorf("Holds(%s, %d) = %d, %v, %v, want %v", c.uuid, c.pid, bytes, at, got, c.want)
			}
		}
		if !h.Knows(first) || !h.Knows(second) || h.Knows("GPU-none") {
			t.Error("the host knows a GPU that is not there, or does not know its own")
		}
		if err := h.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !h.Knows("GPU-none") {
			t.Error("without a driver a GPU is said not to be there")
		}
	})
}
