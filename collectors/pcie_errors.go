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
	Read: readFields(
		field{nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 0, PCIeErrors, 1, []string{"correctable"}},
		field{nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED, 0, PCIeErrors, 1, []string{"nak_received"}},
		field{nvml.FI_DEV_PCIE_COUNT_RECEIVER_ERROR, 0, PCIeErrors, 1, []string{"receiver"}},
		field{nvml.FI_DEV_PCIE_COUNT_BAD_TLP, 0, PCIeErrors, 1, []string{"bad_tlp"}},
		field{nvml.FI_DEV_PCIE_COUNT_NAKS_SENT, 0, PCIeErrors, 1, []string{"nak_sent"}},
		field{nvml.FI_DEV_PCIE_COUNT_BAD_DLLP, 0, PCIeErrors, 1, []string{"bad_dllp"}},
		field{nvml.FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, 0, PCIeErrors, 1, []string{"non_fatal"}},
		field{nvml.FI_DEV_PCIE_COUNT_FATAL_ERROR, 0, PCIeErrors, 1, []string{"fatal"}},
		field{nvml.FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, 0, PCIeErrors, 1, []string{"unsupported_request"}},
		field{nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, 0, PCIeErrors, 1, []string{"lcrc"}},
		field{nvml.FI_DEV_PCIE_COUNT_LANE_ERROR, 0, PCIeErrors, 1, []string{"lane"}},
	),
})
