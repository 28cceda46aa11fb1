package sim

import (
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// TestConcurrentReaders reads everything from many goroutines, for the race
// detector, while events are awaited and sessions are joined and left.
func TestConcurrentReaders(t *testing.T) {
	s := embedded(t, "faults")
	s.Faults = s.Faults[:4]
	h := begin(t, s, Options{Speed: 20}) // a loaded machine must simulate as fast as time passes
	set := subscribe(t, h)
	var wg sync.WaitGroup
	for reader := range 6 {
		wg.Go(func() {
			for i := range 40 {
				d := gpuOf(t, h, (reader+i)%scenarios.MaxGPUs)
				for _, c := range recordedCalls {
					if _, ret := c.call(d); ret == nvml.ERROR_UNINITIALIZED {
						t.Errorf("the session is gone")
					}
				}
				check(t, h.Init())
				check(t, h.Shutdown())
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			set.Wait(1)
		}
	})
	wg.Go(func() {
		for pid := range 12_000 {
			if p, ok := h.Process(pid); ok && p.Environ["SLURM_JOB_USER"] == "" && len(h.ContainerNames()) == 0 {
				t.Errorf("process %d is %+v", pid, p)
			}
		}
	})
	wg.Wait()
}
