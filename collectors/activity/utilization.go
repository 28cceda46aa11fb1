// Package activity reads what the units of a GPU do.
package activity

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Utilization is the driver's own figure: the share of its last sample period
// (1/6 s to 1 s) in which the engine did any work.
var Utilization = collectors.Gauge("nvgpu_utilization_ratio",
	"Share of the driver's last sample period in which the engine was busy.", "engine")

var _ = collectors.Register(collectors.Collector{
	Name:    "utilization",
	Doc:     "Utilization of the GPU's engines, as shown by nvidia-smi.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{Utilization},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		u, ret := g.GetUtilizationRates()
		out.Put(Utilization, float64(u.Gpu)/100, ret, "gpu")
		out.Put(Utilization, float64(u.Memory)/100, ret, "memory")
		percent, _, ret := g.GetEncoderUtilization()
		out.Put(Utilization, float64(percent)/100, ret, "encoder")
		percent, _, ret = g.GetDecoderUtilization()
		out.Put(Utilization, float64(percent)/100, ret, "decoder")
		percent, _, ret = g.GetJpgUtilization()
		out.Put(Utilization, float64(percent)/100, ret, "jpeg")
		percent, _, ret = g.GetOfaUtilization()
		out.Put(Utilization, float64(percent)/100, ret, "ofa")
	},
})
