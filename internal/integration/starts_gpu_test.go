//go:build gpu

package integration

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var starts = flag.Int("starts", 48, "`number` of agents that TestGPUStarts starts, as many at once as -test.parallel says")

// TestGPUStarts starts the agent again and again. It must live at least until all GPUs'
// performance metrics have been read a few times. It once crashed in the driver's library
// at that moment, in one of ten starts on a host with two GPUs.
func TestGPUStarts(t *testing.T) {
	agent := binary(t)
	for i := range *starts {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			m := startMeasured(t, agent)
			eventually(t, "performance metrics", func() bool {
				_, ok := m.value("nvgpu_gpm_sm_occupancy_ratio")
				return ok
			})
			time.Sleep(2 * time.Second) // some readings more
		})
	}
}
