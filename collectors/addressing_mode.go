package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// AddressingMode is the way the GPU addresses the host's pageable memory.
var AddressingMode = Gauge("nvgpu_addressing_mode_info",
	"Addressing mode of the GPU for pageable host memory (none, hmm, ats), always 1.", "mode")

var addressingModes = map[nvml.DeviceAddressingModeType]string{
	nvml.DEVICE_ADDRESSING_MODE_NONE: "none", nvml.DEVICE_ADDRESSING_MODE_HMM: "hmm",
	nvml.DEVICE_ADDRESSING_MODE_ATS: "ats",
}

var _ = Register(Collector{
	Name:    "addressing_mode",
	Doc:     "Addressing mode of the GPU for pageable host memory.",
	Tier:    Static,
	Metrics: []*Metric{AddressingMode},
	Read: func(g *gpu.Device, out *Readings) {
		m, ret := g.GetAddressingMode()
		out.Put(AddressingMode, 1, ret, Known(addressingModes, nvml.DeviceAddressingModeType(m.Value)))
	},
})
