package links

import (
	"encoding/hex"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// The NVLink fabric, on GPUs behind NVSwitches.
var (
	FabricState = collectors.Gauge("nvgpu_fabric_state",
		"Registration state of the GPU with the fabric: 1 for the current state, 0 for the others.", "state")
	FabricHealth = collectors.Gauge("nvgpu_fabric_health",
		"Whether the check found a fault (for partition_assigned: whether a partition is assigned).", "check")
	FabricInfo = collectors.Gauge("nvgpu_fabric_info", "Fabric of the GPU, always 1. GPUs with the same cluster "+
		"and clique reach each other over NVLink: in a rack (MNNVL) those of several hosts. The cluster is 0 on a "+
		"host with a fabric of its own.", "cluster_uuid", "clique_id")
)

// fabricChecks are the fields of the health mask: 0 means that the platform
// does not report the field, and good is the value without a fault.
var fabricChecks = []struct {
	name              string
	shift, mask, good uint32
}{
	{"degraded_bw", nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW,
		nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE},
	{"route_recovery", nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE},
	{"route_unhealthy", nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE},
	{"access_timeout_recovery", nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY,
		nvml.GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_FALSE},
	{"incorrect_configuration", nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION,
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION,
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE},
	{"partition_assigned", nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_PARTITION_ASSIGNED,
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_PARTITION_ASSIGNED, nvml.GPU_FABRIC_HEALTH_MASK_PARTITION_ASSIGNED_FALSE},
}

var _ = collectors.Register(collectors.Collector{
	Name:    "fabric",
	Doc:     "Registration with the NVLink fabric, and its health.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{FabricState, FabricHealth, FabricInfo},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		info, ret := g.FabricInfo()
		if ret != nvml.SUCCESS {
			out.Put(FabricState, 0, ret)
			return
		}
		out.States(FabricState, int(info.State), ret, "not_supported", "not_started", "in_progress", "completed")
		if info.State == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
			out.Put(FabricHealth, 0, nvml.ERROR_NOT_SUPPORTED)
			out.Put(FabricInfo, 0, nvml.ERROR_NOT_SUPPORTED)
			return
		}
		if info.State == nvml.GPU_FABRIC_STATE_COMPLETED {
			out.Set(FabricHealth, collectors.Bool(info.Status != uint32(nvml.SUCCESS)), "registration")
		}
		for _, c := range fabricChecks {
			if v := info.HealthMask >> c.shift & c.mask; v != 0 {
				out.Set(FabricHealth, collectors.Bool(v != c.good), c.name)
			}
		}
		if s := info.HealthSummary; s != nvml.GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED {
			out.Set(FabricHealth, collectors.Bool(s == nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY), "unhealthy")
			out.Set(FabricHealth, collectors.Bool(s == nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY), "limited_capacity")
		}
		out.Set(FabricInfo, 1, dashed(info.ClusterUuid), strconv.Itoa(int(info.CliqueId)))
	},
})

// dashed formats a UUID with dashes.
func dashed(b [16]uint8) string {
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
