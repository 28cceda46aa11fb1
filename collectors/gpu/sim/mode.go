package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
)

// GetPersistenceMode returns on, unless a fault switched it off.
func (d *device) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return read(d, "nvmlDeviceGetPersistenceMode", func(g *gpu) (nvml.EnableState, nvml.Return) {
		return enabled(!g.trouble.unkept), nvml.SUCCESS
	})
}

// GetDisplayActive returns off.
func (d *device) GetDisplayActive() (nvml.EnableState, nvml.Return) {
	return fixed(d, "nvmlDeviceGetDisplayActive", func(*models.Model) nvml.EnableState { return nvml.FEATURE_DISABLED })
}

// GetDramEncryptionMode returns off, on models that can encrypt.
func (d *device) GetDramEncryptionMode() (current, pending nvml.DramEncryptionInfo, ret nvml.Return) {
	current, ret = featured(d, "nvmlDeviceGetDramEncryptionMode", "dram_encryption",
		func(*gpu) nvml.DramEncryptionInfo {
			info := nvml.DramEncryptionInfo{}
			info.Version = nvml.STRUCT_VERSION(info, 1)
			return info
		})
	return current, current, ret
}

// GetComputeMode returns default: processes share the GPU.
func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return fixed(d, "nvmlDeviceGetComputeMode", func(*models.Model) nvml.ComputeMode { return nvml.COMPUTEMODE_DEFAULT })
}

// GetVirtualizationMode returns pass-through in a virtual machine.
func (d *device) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	return read(d, "nvmlDeviceGetVirtualizationMode", func(g *gpu) (nvml.GpuVirtualizationMode, nvml.Return) {
		switch {
		case g.model.VirtualMachine:
			return nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH, nvml.SUCCESS
		case len(g.spec.VGPUs) > 0:
			return nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU, nvml.SUCCESS
		}
		return nvml.GPU_VIRTUALIZATION_MODE_NONE, nvml.SUCCESS
	})
}

// GetHostVgpuMode returns SR-IOV on a GPU that hosts vGPUs.
func (d *device) GetHostVgpuMode() (nvml.HostVgpuMode, nvml.Return) {
	return read(d, "nvmlDeviceGetHostVgpuMode", func(g *gpu) (nvml.HostVgpuMode, nvml.Return) {
		if len(g.spec.VGPUs) == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.HOST_VGPU_MODE_SRIOV, nvml.SUCCESS
	})
}

// GetNumaNodeId returns the GPU's NUMA node, which a guest cannot see.
func (d *device) GetNumaNodeId() (int, nvml.Return) {
	return featured(d, "nvmlDeviceGetNumaNodeId", "numa", (*gpu).node)
}

// node returns the CPU socket to which the GPU is attached.
func (g *gpu) node() int { return g.index / 4 % 2 }

// GetAddressingMode returns none, as on the recorded machine.
func (d *device) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	return read(d, "nvmlDeviceGetAddressingMode", func(*gpu) (nvml.DeviceAddressingMode, nvml.Return) {
		return nvml.DeviceAddressingMode{Value: uint32(nvml.DEVICE_ADDRESSING_MODE_NONE)}, nvml.SUCCESS
	})
}
