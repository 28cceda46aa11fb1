package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// InforomInfo holds the versions of the InfoROM's objects.
var InforomInfo = collectors.Gauge("nvgpu_inforom_info",
	"Versions of the InfoROM's objects, always 1.", "oem", "ecc", "power")

var _ = collectors.Register(collectors.Collector{
	Name:    "inforom",
	Doc:     "Versions of the InfoROM's objects.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{InforomInfo},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		oem, ret := g.GetInforomVersion(nvml.INFOROM_OEM)
		out.Put(InforomInfo, 1, ret, oem, gpu.Text(g.GetInforomVersion(nvml.INFOROM_ECC)),
			gpu.Text(g.GetInforomVersion(nvml.INFOROM_POWER)))
	},
})
