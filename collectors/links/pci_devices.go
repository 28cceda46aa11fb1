package links

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// Devices on the PCI bus, independent of the driver. Only GPUs that the host
// has had carry gpu and uuid.
var (
	PCIDevices = collectors.HostGauge("nvgpu_pci_devices",
		"NVIDIA devices on the PCI bus, with or without a driver.", "kind")
	PCIDevicesWithheld = collectors.HostGauge("nvgpu_pci_devices_withheld",
		"GPUs on the PCI bus that the kernel drives and the agent was not given: the driver excludes them, or the agent's "+
			"container has other ones.")
	PCIDevicePresent = collectors.Gauge("nvgpu_pci_device_present",
		"Whether the device answers on the PCI bus: 0 if it reads as all ones, or has disappeared since the "+
			"agent started.", "pci_bus_id", "kind")
	PCIDeviceBound = collectors.Gauge("nvgpu_pci_device_bound",
		"Whether a driver is bound to the device, with its name: 0 if none is.", "pci_bus_id", "kind", "driver")
	PCIPort = collectors.Gauge("nvgpu_pci_port_info",
		"A PCIe port above the GPU, always 1: the kernel names it in messages about the GPU's link.", "port")
	PCIPortLanes = collectors.Gauge("nvgpu_pci_port_lanes",
		"Lanes that the PCIe port directly above the GPU can have. A virtual machine's port may have any number.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "pci_devices",
	Doc:     "GPUs and NVSwitches on the PCI bus, read without the driver.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{PCIDevices, PCIDevicesWithheld, PCIDevicePresent, PCIDeviceBound, PCIPort, PCIPortLanes},
	Kernel: func(k host.Kernel) func(out *collectors.Readings) {
		b := &pciBus{answers: k.Answers, withheld: k.Withheld, seen: map[string]*pciDevice{}}
		return func(out *collectors.Readings) {
			all, err := k.PCIDevices()
			if ret := collectors.OfKernel(err); ret != nvml.SUCCESS {
				out.Put(PCIDevices, 0, ret)
				return
			}
			b.read(all, out)
		}
	},
})

// maxDevices bounds the devices that are followed.
const maxDevices = 64

// A pciBus holds the devices seen since the agent started.
type pciBus struct {
	answers  func(address string) (bool, error)
	withheld func(address string) bool
	seen     map[string]*pciDevice // by address, at most maxDevices
}

// A pciDevice is one of them, with its last answer.
type pciDevice struct {
	host.PCIDevice
	there    bool
	unlisted bool        // by NVIDIA's driver, which has it
	asking   atomic.Bool // a question to the device is pending
	answer   atomic.Pointer[bool]
	withheld atomic.Bool
}

func (b *pciBus) read(all []host.PCIDevice, out *collectors.Readings) {
	for _, d := range b.seen {
		d.there = false
	}
	for _, d := range all {
		s := b.seen[d.Address]
		if s == nil {
			if len(b.seen) == maxDevices {
				continue
			}
			s = new(pciDevice)
			b.seen[d.Address] = s
		}
		s.PCIDevice, s.there = d, true
		s.unlisted = d.Kind == "gpu" && d.Driver == "nvidia" && pciLabels(d, out)[1] == ""
	}
	b.ask()
	counts, withheld := map[string]int{}, 0
	for _, d := range b.seen {
		labels := pciLabels(d.PCIDevice, out)
		counts[d.Kind] += int(collectors.Bool(d.there))
		if !d.there {
			out.Set(PCIDevicePresent, 0, labels...)
			continue
		}
		withheld += int(collectors.Bool(d.unlisted && d.withheld.Load()))
		out.Set(PCIDeviceBound, collectors.Bool(d.Driver != ""), append(labels, d.Driver)...)
		if d.Ports != "" && labels[1] != "" {
			for port := range strings.SplitSeq(d.Ports, "/") {
				out.Set(PCIPort, 1, labels[0], labels[1], port)
			}
			if d.Lanes > 0 {
				out.Set(PCIPortLanes, float64(d.Lanes), labels[0], labels[1])
			}
		}
		if answer := d.answer.Load(); answer != nil {
			out.Set(PCIDevicePresent, collectors.Bool(*answer), labels...)
		} else {
			out.Fail(nvml.ERROR_TIMEOUT)
		}
	}
	for kind, n := range counts {
		out.Set(PCIDevices, float64(n), kind)
	}
	if withheld > 0 {
		out.Set(PCIDevicesWithheld, float64(withheld))
	}
	if len(counts) == 0 { // none now or before: the GPUs may be on a bus that is not visible here
		out.Put(PCIDevices, 0, nvml.ERROR_NOT_SUPPORTED)
	}
}

// patience is the time a device has to answer on the bus.
const patience = time.Second

// ask asks each present device on its own goroutine. A device that hangs does
// not delay the others, and is asked again once it returns.
func (b *pciBus) ask() {
	var asked sync.WaitGroup
	for _, d := range b.seen {
		if !d.there || d.asking.Swap(true) {
			continue
		}
		d.answer.Store(nil)
		address, unlisted := d.Address, d.unlisted
		asked.Go(func() {
			d.withheld.Store(unlisted && b.withheld(address))
			if yes, err := b.answers(address); err == nil {
				d.answer.Store(&yes)
			}
			d.asking.Store(false)
		})
	}
	answered := make(chan struct{})
	go func() { defer close(answered); asked.Wait() }()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-answered:
	case <-t.C:
	}
}

// pciLabels returns the labels of d: its GPU if known, its address and its
// kind.
func pciLabels(d host.PCIDevice, out *collectors.Readings) []string {
	own, _ := host.ParsePCI(d.Address)
	for _, id := range out.Known() {
		if at, ok := host.ParsePCI(id.PCI); ok && at == own {
			return []string{strconv.Itoa(id.Index), id.UUID, d.Address, d.Kind}
		}
	}
	return []string{"", "", d.Address, d.Kind}
}
