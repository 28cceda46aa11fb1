package sim

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// buses are the PCI buses of a host's GPUs, first those of eight on an HGX
// board.
var buses = [scenarios.MaxGPUs]uint32{
	0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF,
	0x04, 0x1F, 0x2C, 0x47, 0x84, 0x9A, 0xAB, 0xC7,
}

// uuid returns the identifier of an object on the GPU.
func (g *gpu) uuid(prefix string, salt uint64) string {
	a, b := noise.Hash(g.seed, 1000+salt), noise.Hash(g.seed, 2000+salt)
	return fmt.Sprintf("%s-%08x-%04x-4%03x-%04x-%012x", prefix, a>>32, a>>16&0xFFFF, a&0xFFF, 0x8000|b>>48&0x3FFF,
		b&0xFFFFFFFFFFFF)
}

// address returns the GPU's location on the PCI bus.
func (g *gpu) address() (bus, slot uint32) {
	if g.model.VirtualMachine {
		return 0, uint32(6 + g.index)
	}
	return buses[g.index], 0
}

// GetName returns the product's name.
func (d *device) GetName() (string, nvml.Return) {
	return fixed(d, "nvmlDeviceGetName", func(m *models.Model) string { return m.Name })
}

// GetUUID returns "GPU-" and a UUID that depends on the seed and the index.
func (d *device) GetUUID() (string, nvml.Return) {
	return read(d, "nvmlDeviceGetUUID", func(g *gpu) (string, nvml.Return) { return g.uuid("GPU", 0), nvml.SUCCESS })
}

// GetSerial returns 13 digits that depend on the seed and the index.
func (d *device) GetSerial() (string, nvml.Return) {
	return read(d, "nvmlDeviceGetSerial", func(g *gpu) (string, nvml.Return) {
		return fmt.Sprintf("165%010d", noise.Hash(g.seed, 3)%10_000_000_000), nvml.SUCCESS
	})
}

// GetIndex returns the position among the GPUs present.
func (d *device) GetIndex() (int, nvml.Return) {
	return read(d, "nvmlDeviceGetIndex", func(g *gpu) (int, nvml.Return) {
		for i, other := range g.host.present(g.host.now()) {
			if other == g {
				return i, nvml.SUCCESS
			}
		}
		return 0, nvml.ERROR_GPU_IS_LOST
	})
}

// GetMinorNumber returns N of /dev/nvidiaN.
func (d *device) GetMinorNumber() (int, nvml.Return) {
	return read(d, "nvmlDeviceGetMinorNumber", func(g *gpu) (int, nvml.Return) { return g.index, nvml.SUCCESS })
}

// GetPciInfo returns the address and the PCI identifiers.
func (d *device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return read(d, "nvmlDeviceGetPciInfo", func(g *gpu) (nvml.PciInfo, nvml.Return) {
		bus, slot := g.address()
		info := nvml.PciInfo{Bus: bus, Device: slot, PciDeviceId: g.model.PCIDevice,
			PciSubSystemId: g.model.PCISubsystem}
		text(info.BusId[:], fmt.Sprintf("%08X:%02X:%02X.0", 0, bus, slot))
		text(info.BusIdLegacy[:], fmt.Sprintf("%04X:%02X:%02X.0", 0, bus, slot))
		return info, nvml.SUCCESS
	})
}

// GetBrand returns an nvml.BRAND_*.
func (d *device) GetBrand() (nvml.BrandType, nvml.Return) {
	return fixed(d, "nvmlDeviceGetBrand", func(m *models.Model) nvml.BrandType { return nvml.BrandType(m.Brand) })
}

// GetArchitecture returns an nvml.DEVICE_ARCH_*.
func (d *device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return fixed(d, "nvmlDeviceGetArchitecture", func(m *models.Model) nvml.DeviceArchitecture {
		return nvml.DeviceArchitecture(m.Architecture)
	})
}

// GetCudaComputeCapability returns the major and minor version.
func (d *device) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetCudaComputeCapability", func(g *gpu) nvml.Return {
		major, minor = g.model.Compute[0], g.model.Compute[1]
		return nvml.SUCCESS
	})
	return major, minor, ret
}

// GetBoardPartNumber returns the part number.
func (d *device) GetBoardPartNumber() (string, nvml.Return) {
	return fixed(d, "nvmlDeviceGetBoardPartNumber", func(m *models.Model) string { return m.PartNumber })
}

// GetBoardId returns an identifier derived from the PCI address.
func (d *device) GetBoardId() (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetBoardId", func(g *gpu) (uint32, nvml.Return) {
		bus, slot := g.address()
		return bus<<8 | slot, nvml.SUCCESS
	})
}

// GetVbiosVersion returns the VBIOS version.
func (d *device) GetVbiosVersion() (string, nvml.Return) {
	return fixed(d, "nvmlDeviceGetVbiosVersion", func(m *models.Model) string { return m.VBIOS })
}

// GetNumGpuCores returns the number of CUDA cores.
func (d *device) GetNumGpuCores() (int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetNumGpuCores", func(m *models.Model) int { return m.Cores })
}

// GetModuleId returns the position on the board.
func (d *device) GetModuleId() (int, nvml.Return) {
	return featured(d, "nvmlDeviceGetModuleId", "module_id", (*gpu).module)
}

func (g *gpu) module() int {
	if g.model.VirtualMachine {
		return 8
	}
	return g.index%8 + 1
}

// GetPlatformInfo returns the location in the chassis, which a guest cannot
// see.
func (d *device) GetPlatformInfo() (nvml.PlatformInfo, nvml.Return) {
	return featured(d, "nvmlDeviceGetPlatformInfo", "platform", func(g *gpu) nvml.PlatformInfo {
		info := nvml.PlatformInfo{ModuleId: uint8(g.module())}
		info.Version = nvml.STRUCT_VERSION(info, 2)
		if !g.model.VirtualMachine {
			copy(info.ChassisSerialNumber[:], "1821325191344")
			info.SlotNumber, info.TrayIndex, info.HostId, info.PeerType = 1, 0, 1, 1
			info.IbGuid[0] = uint8(g.index + 1)
		}
		return info
	})
}
