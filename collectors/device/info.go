// Package device reads a GPU and its board: identity, modes, clocks, power,
// temperatures, memory and partitions.
package device

import (
	"fmt"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Info holds the constant properties of a GPU; join it with "* on(uuid)
// group_left(name)".
var Info = collectors.Gauge("nvgpu_info", "Identity of the GPU, always 1.",
	"name", "brand", "architecture", "compute_capability", "pci_bus_id", "minor", "serial",
	"board_part_number", "vbios", "inforom_image", "gsp_version", "numa_node", "module_id")

var _ = collectors.Register(collectors.Collector{
	Name:    "info",
	Doc:     "Identity of the GPU and its firmware.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{Info},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		name, ret := g.GetName()
		brand, bret := g.GetBrand()
		arch, aret := g.GetArchitecture()
		out.Put(Info, 1, ret, name, gpu.Text(gpu.Known(brands, brand), bret), gpu.Text(gpu.Known(architectures, arch), aret),
			capability(g), g.PCI,
			strconv.Itoa(g.Minor), gpu.Text(g.GetSerial()), gpu.Text(g.GetBoardPartNumber()), gpu.Text(g.GetVbiosVersion()),
			gpu.Text(g.GetInforomImageVersion()), gpu.Text(g.GetGspFirmwareVersion()), gpu.Int(g.GetNumaNodeId()),
			gpu.Int(g.GetModuleId()))
	},
})

func capability(g *gpu.Device) string {
	major, minor, ret := g.GetCudaComputeCapability()
	return gpu.Text(fmt.Sprintf("%d.%d", major, minor), ret)
}

var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER: "Kepler", nvml.DEVICE_ARCH_MAXWELL: "Maxwell", nvml.DEVICE_ARCH_PASCAL: "Pascal",
	nvml.DEVICE_ARCH_VOLTA: "Volta", nvml.DEVICE_ARCH_TURING: "Turing", nvml.DEVICE_ARCH_AMPERE: "Ampere",
	nvml.DEVICE_ARCH_ADA: "Ada Lovelace", nvml.DEVICE_ARCH_HOPPER: "Hopper", nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
}

var brands = map[nvml.BrandType]string{
	nvml.BRAND_UNKNOWN: "Unknown", nvml.BRAND_QUADRO: "Quadro", nvml.BRAND_TESLA: "Tesla", nvml.BRAND_NVS: "NVS",
	nvml.BRAND_GRID: "Grid", nvml.BRAND_GEFORCE: "GeForce", nvml.BRAND_TITAN: "Titan",
	nvml.BRAND_NVIDIA_VAPPS: "NVIDIA Virtual Applications",
	nvml.BRAND_NVIDIA_VPC:   "NVIDIA Virtual PC", nvml.BRAND_NVIDIA_VCS: "NVIDIA Virtual Compute Server",
	nvml.BRAND_NVIDIA_VWS: "NVIDIA RTX Virtual Workstation", nvml.BRAND_NVIDIA_CLOUD_GAMING: "NVIDIA Cloud Gaming",
	nvml.BRAND_QUADRO_RTX: "Quadro RTX", nvml.BRAND_NVIDIA_RTX: "NVIDIA RTX", nvml.BRAND_NVIDIA: "NVIDIA",
	nvml.BRAND_GEFORCE_RTX: "GeForce RTX", nvml.BRAND_TITAN_RTX: "Titan RTX",
}
