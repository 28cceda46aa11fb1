package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// peer returns the other GPU of a call on two.
func (g *gpu) peer(other nvml.Device) (*gpu, bool) {
	o, ok := other.(*device)
	if !ok || o.gpu.host != g.host {
		return nil, false
	}
	return o.gpu, true
}

// GetTopologyCommonAncestor returns the distance between two GPUs.
func (d *device) GetTopologyCommonAncestor(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	return read(d, "nvmlDeviceGetTopologyCommonAncestor", func(g *gpu) (nvml.GpuTopologyLevel, nvml.Return) {
		o, ok := g.peer(other)
		switch {
		case !ok:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case o == g:
			return nvml.TOPOLOGY_INTERNAL, nvml.SUCCESS
		case g.model.VirtualMachine:
			return nvml.TOPOLOGY_HOSTBRIDGE, nvml.SUCCESS
		case o.node() == g.node():
			return nvml.TOPOLOGY_NODE, nvml.SUCCESS
		}
		return nvml.TOPOLOGY_SYSTEM, nvml.SUCCESS
	})
}

// GetP2PStatus reports whether two GPUs can access each other's memory; over
// NVLink only with links.
func (d *device) GetP2PStatus(other nvml.Device, index nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	return read(d, "nvmlDeviceGetP2PStatus", func(g *gpu) (nvml.GpuP2PStatus, nvml.Return) {
		o, ok := g.peer(other)
		if !ok || index < 0 || index >= nvml.P2P_CAPS_INDEX_UNKNOWN {
			return nvml.P2P_STATUS_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
		}
		linked := g.model.NVLink.Links > 0 && o.model.NVLink.Links > 0
		if index == nvml.P2P_CAPS_INDEX_NVLINK && !linked || len(g.spec.MIG)+len(o.spec.MIG) > 0 {
			return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
		}
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	})
}

// FabricInfo returns the result of nvmlDeviceGetGpuFabricInfoV. It replaces
// GetGpuFabricInfoV().V3(), which cannot be simulated.
func (d *device) FabricInfo() (nvml.GpuFabricInfo_v3, nvml.Return) {
	return read(d, "nvmlDeviceGetGpuFabricInfoV", func(g *gpu) (nvml.GpuFabricInfo_v3, nvml.Return) {
		return g.fabric(), nvml.SUCCESS
	})
}

// C2CMode returns the result of nvmlDeviceGetC2cModeInfoV. It replaces
// GetC2cModeInfoV().V1(), which cannot be simulated.
func (d *device) C2CMode() (nvml.C2cModeInfo_v1, nvml.Return) {
	return read(d, "nvmlDeviceGetC2cModeInfoV", func(g *gpu) (nvml.C2cModeInfo_v1, nvml.Return) {
		if !g.model.Has("c2c") {
			return nvml.C2cModeInfo_v1{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.C2cModeInfo_v1{IsC2cEnabled: 1}, nvml.SUCCESS
	})
}

func (g *gpu) fabric() nvml.GpuFabricInfo_v3 {
	info := nvml.GpuFabricInfo_v3{}
	info.Version = nvml.STRUCT_VERSION(info, 3)
	if !g.model.Has("nvswitch") {
		return info
	}
	info.State, info.HealthSummary = nvml.GPU_FABRIC_STATE_COMPLETED, nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
	if g.model.Has("mnnvl") { // one domain of the rack, which is one partition
		info.ClusterUuid, info.CliqueId = [16]uint8{0: 0x4e, 6: 0x40, 8: 0x80, 15: 72}, 1
	}
	bandwidth := uint32(nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE)
	if g.nvlink.up < len(g.nvlink.links) {
		bandwidth, info.HealthSummary = nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE,
			nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY
	}
	info.HealthMask = bandwidth<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW |
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE<<
			nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY |
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY |
		nvml.GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_FALSE<<
			nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY |
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE<<
			nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION |
		nvml.GPU_FABRIC_HEALTH_MASK_PARTITION_ASSIGNED_TRUE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_PARTITION_ASSIGNED
	if spoil := g.trouble.fabric; spoil != nil {
		spoil(&info)
	}
	return info
}
