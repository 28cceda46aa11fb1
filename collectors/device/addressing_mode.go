package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// AddressingMode is the way the GPU addresses the host's pageable memory.
var AddressingMode = collectors.Gauge("nvgpu_addressing_mode_info",
	"Addressing mode of the GPU for pageable host memory (none, hmm, ats), always 1.", "mode")

var addressingModes = map[nvml.DeviceAddressingModeType]string{
	nvml.DEVICE_ADDRESSING_MODE_NONE: "none", nvml.DEVICE_ADDRESSING_MODE_HMM: "hmm",
	nvml.DEVICE_ADDRESSING_MODE_ATS: "ats",
}

var _ = collectors.Register(collectors.Collector{
	Name:    "addressing_mode",
	Doc:     "Addressing mode of the GPU for pageable host memory.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{AddressingMode},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		m, ret := g.GetAddressingMode()
		out.Put(AddressingMode, 1, ret, gpu.Known(addressingModes, nvml.DeviceAddressingModeType(m.Value)))
	},
})
