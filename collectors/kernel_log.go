package collectors

import (
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// Faults in the kernel's log since the start of its ring, including messages
// from before the agent started and while NVML is dead. One fault can log
// several messages.
var (
	KernelXIDMessages = Counter("nvgpu_kernel_xid_messages_total",
		"Lines of the kernel's log with this XID for the GPU; one fault can log several.", "xid")
	NVSwitchSXIDs = HostCounter("nvgpu_nvswitch_sxid_total",
		"Lines of the kernel's log with this SXid for an NVSwitch.", "pci_bus_id", "sxid")
)

var _ = Register(Collector{
	Name:    "kernel_xid",
	Doc:     "XIDs in the kernel's log; needs read access to /dev/kmsg.",
	Tier:    Medium,
	Metrics: []*Metric{KernelXIDMessages},
	Open: func(g *gpu.Device) Read {
		own, known := host.ParsePCI(g.PCI)
		return func(_ *gpu.Device, out *Readings) {
			out.Faults.Put(out, KernelXIDMessages, func(f LoggedFault) []string {
				if !known || f.Switch != "" || f.Device != own {
					return nil
				}
				return []string{f.Code}
			})
		}
	},
})

var _ = Register(Collector{
	Name:    "nvswitch",
	Doc:     "SXids of NVSwitches in the kernel's log; needs read access to /dev/kmsg.",
	Tier:    Medium,
	Metrics: []*Metric{NVSwitchSXIDs},
	Host: func(*gpu.Library) func(out *Readings) {
		return func(out *Readings) {
			out.Faults.Put(out, NVSwitchSXIDs, func(f LoggedFault) []string {
				if f.Switch == "" {
					return nil
				}
				return []string{f.Switch, f.Code}
			})
		}
	},
})
