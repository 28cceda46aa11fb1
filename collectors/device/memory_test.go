package device

import (
	"math"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/hosttest"
)

func TestMemoryOfAGPU(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100}, {model: l4}, {model: a100}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		for index, bandwidth := range map[string]float64{"0": 3.352e12, "1": 300e9, "2": 2.039e12} {
			uuid := hosttest.Told(h, collectors.Up, "gpu", index)["uuid"]
			if rate, ok := h.Reading(uuid, MemoryBandwidth); !ok || math.Abs(rate/bandwidth-1) > .01 {
				t.Errorf("the memory of GPU %s moves %.4g bytes a second (known: %v), want about %.4g", index, rate, ok,
					bandwidth)
			}
			total, free, reserved, ok := MemoryOf(h, uuid)
			used, _ := hosttest.Get(t, h, MemoryBytes, index, "used")
			if !ok || total == 0 || free+reserved+uint64(used) != total {
				t.Errorf("GPU %s: of %d bytes %d are free, %d reserved, %v used (known: %v)", index, total, free,
					reserved, used, ok)
			}
		}
		if _, _, _, ok := MemoryOf(h, "GPU-none"); ok {
			t.Error("a missing GPU has memory")
		}
	})
}
