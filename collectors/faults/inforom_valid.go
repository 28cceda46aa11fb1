package faults

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// InforomValid shows a corrupt InfoROM; a read takes 70 ms.
var InforomValid = collectors.Gauge("nvgpu_inforom_valid", "Whether the InfoROM's checksum is valid.")

var _ = collectors.Register(collectors.Collector{
	Name:    "inforom_valid",
	Doc:     "Checksum of the InfoROM, once after the driver was loaded: the check blocks the GPU's reader for 70 ms.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{InforomValid},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		ret := g.ValidateInforom()
		if ret == nvml.ERROR_CORRUPTED_INFOROM {
			out.Set(InforomValid, 0)
			return
		}
		out.Put(InforomValid, 1, ret)
	},
})
