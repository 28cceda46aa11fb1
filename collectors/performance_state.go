package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// PerformanceState is the P-state.
var PerformanceState = Gauge("nvgpu_performance_state", "Performance state: 0 (P0) is the fastest, 15 the slowest.")

var _ = Register(Collector{
	Name:    "performance_state",
	Doc:     "Performance state.",
	Tier:    Fast,
	Metrics: []*Metric{PerformanceState},
	Read: func(g *gpu.Device, out *Readings) {
		p, ret := g.GetPerformanceState()
		if p != nvml.PSTATE_UNKNOWN {
			out.Put(PerformanceState, float64(p), ret)
		}
	},
})
