package faults

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// Faults in the kernel's log since the start of its ring, including messages
// from before the agent started and while NVML is dead. One fault can log
// several messages.
var (
	KernelXIDMessages = collectors.Counter("nvgpu_kernel_xid_messages_total",
		"Lines of the kernel's log with this XID for the GPU; one fault can log several.", "xid")
	NVSwitchSXIDs = collectors.HostCounter("nvgpu_nvswitch_sxid_total",
		"Lines of the kernel's log with this SXid for an NVSwitch.", "pci_bus_id", "sxid")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "kernel_xid",
	Doc:     "XIDs in the kernel's log; needs read access to /dev/kmsg.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{KernelXIDMessages},
	Open: func(g *gpu.Device) collectors.Read {
		own, known := host.ParsePCI(g.PCI)
		return func(_ *gpu.Device, out *collectors.Readings) {
			out.Faults.Put(out, KernelXIDMessages, func(f collectors.LoggedFault) []string {
				if !known || f.Device != own { // that of a switch is empty
					return nil
				}
				return []string{f.Code}
			})
		}
	},
})

var _ = collectors.Register(collectors.Collector{
	Name:    "nvswitch",
	Doc:     "SXids of NVSwitches in the kernel's log; needs read access to /dev/kmsg.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{NVSwitchSXIDs},
	Host: func(*gpu.Library) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			out.Faults.Put(out, NVSwitchSXIDs, func(f collectors.LoggedFault) []string {
				if f.Switch == "" {
					return nil
				}
				return []string{f.Switch, f.Code}
			})
		}
	},
})
