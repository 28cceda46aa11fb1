package links

import (
	"math"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// The PCIe link: max is the limit of GPU and slot together, gpu_max the limit
// of the GPU alone. An idle link may run below its max to save power.
var (
	PCIeGeneration = collectors.Gauge("nvgpu_pcie_link_generation", "PCIe generation of the link.", "kind")
	PCIeWidth      = collectors.Gauge("nvgpu_pcie_link_width_lanes", "PCIe lanes of the link.", "kind")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "pcie_link",
	Doc:     "Generation and width of the PCIe link.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{PCIeGeneration, PCIeWidth},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		n, ret := g.GetCurrPcieLinkGeneration()
		out.Put(PCIeGeneration, float64(n), ret, "current")
		n, ret = g.GetMaxPcieLinkGeneration()
		out.Put(PCIeGeneration, float64(n), ret, "max")
		n, ret = g.GetGpuMaxPcieLinkGeneration()
		out.Put(PCIeGeneration, float64(n), ret, "gpu_max")
		n, ret = g.GetCurrPcieLinkWidth()
		out.Put(PCIeWidth, float64(n), ret, "current")
		n, ret = g.GetMaxPcieLinkWidth()
		out.Put(PCIeWidth, float64(n), ret, "max")
	},
})

// lane is the bandwidth of a PCIe 3 lane in one direction, in bytes per second:
// 8 GT/s with 128 data bits in 130. Each generation doubles it.
const lane = 8e9 / 8 * 128 / 130

// PCIeRate returns the transfer rate of a GPU's PCIe link in one direction, in
// bytes per second, of a kind: max or current. It is 0 if the driver does not
// report it or the GPU does not answer. PCIeRate makes no driver call.
func PCIeRate(h *collectors.Host, uuid, kind string) float64 {
	generation, known := h.Reading(uuid, PCIeGeneration, kind)
	width, wide := h.Reading(uuid, PCIeWidth, kind)
	if !known || !wide || generation <= 0 {
		return 0
	}
	return lane * math.Exp2(generation-3) * width
}
