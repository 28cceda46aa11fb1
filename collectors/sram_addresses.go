package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// SRAMAddresses tells a worn cell, hit again and again, from a shower of hits.
var SRAMAddresses = Gauge("nvgpu_sram_ecc_unique_addresses", "Different SRAM addresses that had uncorrectable errors.")

var _ = Register(Collector{
	Name:    "sram_addresses",
	Doc:     "Different SRAM addresses that had uncorrectable errors.",
	Tier:    Slow,
	OptIn:   true,
	Metrics: []*Metric{SRAMAddresses},
	Read: func(g *gpu.Device, out *Readings) {
		counts := nvml.EccSramUniqueUncorrectedErrorCounts{Version: nvml.STRUCT_VERSION(nvml.EccSramUniqueUncorrectedErrorCounts{}, 1)}
		ret := g.GetSramUniqueUncorrectedEccErrorCounts(&counts) // without room for entries: only how many
		if ret == nvml.ERROR_INSUFFICIENT_SIZE {
			ret = nvml.SUCCESS
		}
		out.Put(SRAMAddresses, float64(counts.EntryCount), ret)
	},
})
