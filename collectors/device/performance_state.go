package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// PerformanceState is the P-state.
var PerformanceState = collectors.Gauge("nvgpu_performance_state",
	"Performance state: 0 (P0) is the fastest, 15 the slowest.")

var _ = collectors.Register(collectors.Collector{
	Name:    "performance_state",
	Doc:     "Performance state.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{PerformanceState},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		p, ret := g.GetPerformanceState()
		if p != nvml.PSTATE_UNKNOWN {
			out.Put(PerformanceState, float64(p), ret)
		}
	},
})
