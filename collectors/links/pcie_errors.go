package links

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// PCIeErrors counts errors seen by the GPU's end of the PCIe link. The types
// are the card's own registers: one fault can raise several.
var PCIeErrors = collectors.Counter("nvgpu_pcie_errors_total", "Errors of the PCIe link that the GPU counted, by type.", "type")

var _ = collectors.Register(collectors.Collector{
	Name:    "pcie_errors",
	Doc:     "PCIe errors; a read takes 2 ms.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{PCIeErrors},
	Read: collectors.ReadFields(
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 0, PCIeErrors, 1, "correctable"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED, 0, PCIeErrors, 1, "nak_received"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_RECEIVER_ERROR, 0, PCIeErrors, 1, "receiver"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_BAD_TLP, 0, PCIeErrors, 1, "bad_tlp"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_NAKS_SENT, 0, PCIeErrors, 1, "nak_sent"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_BAD_DLLP, 0, PCIeErrors, 1, "bad_dllp"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, 0, PCIeErrors, 1, "non_fatal"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_FATAL_ERROR, 0, PCIeErrors, 1, "fatal"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, 0, PCIeErrors, 1, "unsupported_request"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, 0, PCIeErrors, 1, "lcrc"),
		collectors.NewField(nvml.FI_DEV_PCIE_COUNT_LANE_ERROR, 0, PCIeErrors, 1, "lane"),
	),
})
