package collectors

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// PCIeErrors counts errors seen by the GPU's end of the PCIe link. The types
// are the card's own registers: one fault can raise several.
var PCIeErrors = Counter("nvgpu_pcie_errors_total", "PCIe errors by type.", "type")

var _ = Register(Collector{
	Name:    "pcie_errors",
	Doc:     "PCIe errors; a read takes 2 ms.",
	Tier:    Medium,
	Metrics: []*Metric{PCIeErrors},
	Read: ReadFields(
		NewField(nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 0, PCIeErrors, 1, "correctable"),
		NewField(nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED, 0, PCIeErrors, 1, "nak_received"),
		NewField(nvml.FI_DEV_PCIE_COUNT_RECEIVER_ERROR, 0, PCIeErrors, 1, "receiver"),
		NewField(nvml.FI_DEV_PCIE_COUNT_BAD_TLP, 0, PCIeErrors, 1, "bad_tlp"),
		NewField(nvml.FI_DEV_PCIE_COUNT_NAKS_SENT, 0, PCIeErrors, 1, "nak_sent"),
		NewField(nvml.FI_DEV_PCIE_COUNT_BAD_DLLP, 0, PCIeErrors, 1, "bad_dllp"),
		NewField(nvml.FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, 0, PCIeErrors, 1, "non_fatal"),
		NewField(nvml.FI_DEV_PCIE_COUNT_FATAL_ERROR, 0, PCIeErrors, 1, "fatal"),
		NewField(nvml.FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, 0, PCIeErrors, 1, "unsupported_request"),
		NewField(nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, 0, PCIeErrors, 1, "lcrc"),
		NewField(nvml.FI_DEV_PCIE_COUNT_LANE_ERROR, 0, PCIeErrors, 1, "lane"),
	),
})
