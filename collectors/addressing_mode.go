package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// AddressingMode tells how the GPU reaches the host's pageable memory.
var AddressingMode = Gauge("nvgpu_addressing_mode_info", "How the GPU reaches pageable memory (none, hmm, ats), always 1.", "mode")

var addressingModes = map[nvml.DeviceAddressingModeType]string{
	nvml.DEVICE_ADDRESSING_MODE_NONE: "none", nvml.DEVICE_ADDRESSING_MODE_HMM: "hmm", nvml.DEVICE_ADDRESSING_MODE_ATS: "ats",
}

var _ = Register(Collector{
	Name:    "addressing_mode",
	Doc:     "How the GPU reaches the host's pageable memory.",
	Tier:    Static,
	Metrics: []*Metric{AddressingMode},
	Read: func(g *gpu.Device, out *Readings) {
		m, ret := g.GetAddressingMode()
		out.Put(AddressingMode, 1, ret, known(addressingModes, nvml.DeviceAddressingModeType(m.Value)))
	},
})
