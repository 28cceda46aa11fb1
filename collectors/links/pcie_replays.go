package links

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// Symptoms of a bad PCIe connection.
var (
	PCIeReplays         = collectors.Counter("nvgpu_pcie_replays_total", "Packets that the PCIe link had to send again.")
	PCIeReplayRollovers = collectors.Counter("nvgpu_pcie_replay_rollovers_total",
		"PCIe replay counter rollovers: four replays in a row.")
	PCIeLinkRecoveries = collectors.Counter("nvgpu_pcie_link_recoveries_total",
		"Times the PCIe link went from L0 to recovery.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "pcie_replays",
	Doc:     "PCIe replays and link recoveries.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{PCIeReplays, PCIeReplayRollovers, PCIeLinkRecoveries},
	Read: collectors.ReadFields(
		collectors.NewField(nvml.FI_DEV_PCIE_REPLAY_COUNTER, 0, PCIeReplays, 1),
		collectors.NewField(nvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, 0, PCIeReplayRollovers, 1),
		collectors.NewField(nvml.FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, 0, PCIeLinkRecoveries, 1),
	),
})
