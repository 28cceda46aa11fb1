//go:build gpu

package integration

import (
	"flag"
	"fmt"
	"testing"
)

var starts = flag.Int("starts", 48, "`number` of agents that TestGPUStarts starts, as many at once as -test.parallel says")

// TestGPUStarts starts the agent again and again. It must live at least until all GPUs'
// performance metrics have been read a few times. It crashed in the driver's library at
// that moment, on hosts with two GPUs.
func TestGPUStarts(t *testing.T) {
	agent := binary(t)
	for i := range *starts {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			m := startMeasured(t, agent)
			eventually(t, "readings of performance metrics", func() bool {
				n, _ := m.value("gpusteward_nvml_calls_total", `call="nvmlGpmMetricsGet"`, `return="success"`)
				return n >= 20
			})
		})
	}
}
