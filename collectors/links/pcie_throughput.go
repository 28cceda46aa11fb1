package links

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// PCIeThroughput is for GPUs without GPM. Each direction blocks the reader for
// 21 ms, which is all it measures.
var PCIeThroughput = collectors.Gauge("nvgpu_pcie_throughput_bytes_per_second",
	"PCIe traffic over a 20 ms window.", "direction")

var _ = collectors.Register(collectors.Collector{
	Name:    "pcie_throughput",
	Doc:     "PCIe traffic on GPUs without GPM; a read takes 42 ms.",
	Tier:    collectors.Slow,
	OptIn:   true,
	Metrics: []*collectors.Metric{PCIeThroughput},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		kib, ret := g.GetPcieThroughput(nvml.PCIE_UTIL_TX_BYTES)
		out.Put(PCIeThroughput, float64(kib)*1024, ret, "tx")
		kib, ret = g.GetPcieThroughput(nvml.PCIE_UTIL_RX_BYTES)
		out.Put(PCIeThroughput, float64(kib)*1024, ret, "rx")
	},
})
