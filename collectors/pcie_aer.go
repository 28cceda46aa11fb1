package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/host"
)

// PCIeAERErrors is the kernel's count of errors that devices report to it;
// PCIeErrors is the count in the GPU's own registers.
var PCIeAERErrors = Counter("nvgpu_pcie_aer_errors_total",
	"PCIe errors reported by the device to the kernel since the kernel found it; correctable, nonfatal or "+
		"fatal.", "pci_bus_id", "kind", "severity")

var _ = Register(Collector{
	Name:    "pcie_aer",
	Doc:     "PCIe errors of GPUs and NVSwitches as counted by the kernel (AER), read without the driver.",
	Tier:    Medium,
	Metrics: []*Metric{PCIeAERErrors},
	Kernel: func(k host.Kernel) func(out *Readings) {
		return func(out *Readings) {
			devices, err := k.PCIDevices()
			if ret := OfKernel(err); ret != nvml.SUCCESS {
				out.Put(PCIeAERErrors, 0, ret)
			}
			for _, d := range devices {
				labels := pciLabels(d, out)
				for _, severity := range []string{"correctable", "nonfatal", "fatal"} {
					n, err := k.AERErrors(d.Address, severity)
					out.Put(PCIeAERErrors, float64(n), OfKernel(err), append(labels, severity)...)
				}
			}
		}
	},
})
