package links

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// PCIeAERErrors is the kernel's count of errors that devices report to it;
// PCIeErrors is the count in the GPU's own registers.
var PCIeAERErrors = collectors.Counter("nvgpu_pcie_aer_errors_total",
	"PCIe errors reported by the device to the kernel since the kernel found it; correctable, nonfatal or "+
		"fatal.", "pci_bus_id", "kind", "severity")

var _ = collectors.Register(collectors.Collector{
	Name:    "pcie_aer",
	Doc:     "PCIe errors of GPUs and NVSwitches as counted by the kernel (AER), read without the driver.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{PCIeAERErrors},
	Kernel: func(k host.Kernel) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			devices, err := k.PCIDevices()
			if ret := collectors.OfKernel(err); ret != nvml.SUCCESS {
				out.Put(PCIeAERErrors, 0, ret)
			}
			for _, d := range devices {
				labels := pciLabels(d, out)
				for _, severity := range []string{"correctable", "nonfatal", "fatal"} {
					n, err := k.AERErrors(d.Address, severity)
					out.Put(PCIeAERErrors, float64(n), collectors.OfKernel(err), append(labels, severity)...)
				}
			}
		}
	},
})
