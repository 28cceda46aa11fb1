package links

import (
	"math"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

func TestPCIeRate(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100}, {model: l4}, {model: a100}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		for index, want := range map[string]float64{"0": 63e9, "1": 31.5e9, "2": 31.5e9} {
			if rate := PCIeRate(h, hosttest.Told(h, collectors.Up, "gpu", index)["uuid"], "max"); math.Abs(rate/want-1) > .01 {
				t.Errorf("the link of GPU %s moves %.4g bytes a second, want about %.4g", index, rate, want)
			}
		}
		fixture.Equal(t, PCIeRate(h, "GPU-none", "max"), 0, "a missing GPU has a link with … bytes a second")
	})
}
