package faults

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// SRAMAddresses distinguishes a worn cell, hit repeatedly, from scattered hits.
var SRAMAddresses = collectors.Gauge("nvgpu_sram_ecc_unique_addresses",
	"Distinct SRAM addresses with uncorrectable errors.")

var _ = collectors.Register(collectors.Collector{
	Name:    "sram_addresses",
	Doc:     "Distinct SRAM addresses with uncorrectable errors.",
	Tier:    collectors.Slow,
	OptIn:   true,
	Metrics: []*collectors.Metric{SRAMAddresses},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		var counts nvml.EccSramUniqueUncorrectedErrorCounts
		counts.Version = nvml.STRUCT_VERSION(counts, 1)
		// without room for entries, the call returns only the number
		ret := g.GetSramUniqueUncorrectedEccErrorCounts(&counts)
		if ret == nvml.ERROR_INSUFFICIENT_SIZE {
			ret = nvml.SUCCESS
		}
		out.Put(SRAMAddresses, float64(counts.EntryCount), ret)
	},
})
