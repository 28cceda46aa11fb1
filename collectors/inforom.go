package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// InforomInfo holds the versions of the InfoROM's objects.
var InforomInfo = Gauge("nvgpu_inforom_info", "Versions of the InfoROM's objects, always 1.", "oem", "ecc", "power")

var _ = Register(Collector{
	Name:    "inforom",
	Doc:     "Versions of the InfoROM's objects.",
	Tier:    Static,
	Metrics: []*Metric{InforomInfo},
	Read: func(g *gpu.Device, out *Readings) {
		oem, ret := g.GetInforomVersion(nvml.INFOROM_OEM)
		out.Put(InforomInfo, 1, ret, oem, Text(g.GetInforomVersion(nvml.INFOROM_ECC)),
			Text(g.GetInforomVersion(nvml.INFOROM_POWER)))
	},
})
