package links

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// TopologyPeer is the path between two GPUs, as seen from the first.
var TopologyPeer = collectors.Gauge("nvgpu_topology_peer_info",
	"Path from the GPU to a peer, always 1.", "peer_uuid", "level", "p2p")

var topologyLevels = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL: "internal", nvml.TOPOLOGY_SINGLE: "single_switch",
	nvml.TOPOLOGY_MULTIPLE:   "multiple_switches",
	nvml.TOPOLOGY_HOSTBRIDGE: "host_bridge", nvml.TOPOLOGY_NODE: "numa_node", nvml.TOPOLOGY_SYSTEM: "system",
}

var p2pStates = map[nvml.GpuP2PStatus]string{
	nvml.P2P_STATUS_OK: "ok", nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED: "chipset_not_supported",
	nvml.P2P_STATUS_GPU_NOT_SUPPORTED:          "gpu_not_supported",
	nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "topology_not_supported",
	nvml.P2P_STATUS_DISABLED_BY_REGKEY:         "disabled", nvml.P2P_STATUS_NOT_SUPPORTED: "not_supported",
	nvml.P2P_STATUS_UNKNOWN: "unknown",
}

var _ = collectors.Register(collectors.Collector{
	Name:    "topology",
	Doc:     "Paths between the GPUs: one series for each ordered pair.",
	Tier:    collectors.Slow,
	OptIn:   true,
	Metrics: []*collectors.Metric{TopologyPeer},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		for _, p := range out.Peers() {
			if p.UUID == g.UUID {
				continue
			}
			level, ret := g.CommonAncestor(p)
			p2p, pret := g.P2P(p, nvml.P2P_CAPS_INDEX_READ)
			out.Put(TopologyPeer, 1, ret, p.UUID, gpu.Known(topologyLevels, level), gpu.Text(gpu.Known(p2pStates, p2p), pret))
		}
	},
})
