package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// InforomValid tells a corrupt InfoROM; reading it takes 70 ms.
var InforomValid = Gauge("nvgpu_inforom_valid", "Whether the InfoROM's checksum is right.")

var _ = Register(Collector{
	Name:    "inforom_valid",
	Doc:     "Checksum of the InfoROM; the check holds the GPU's reader up for 70 ms.",
	Tier:    Slow,
	OptIn:   true,
	Metrics: []*Metric{InforomValid},
	Read: func(g *gpu.Device, out *Readings) {
		ret := g.ValidateInforom()
		if ret == nvml.ERROR_CORRUPTED_INFOROM {
			out.Set(InforomValid, 0)
			return
		}
		out.Put(InforomValid, 1, ret)
	},
})
