package collectors

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/host"
)

// What the PCI bus has, whatever the driver says. Only a device that is a GPU
// which the host was ever seen to have carries gpu and uuid.
var (
	PCIDevices       = HostGauge("nvgpu_pci_devices", "NVIDIA's devices on the PCI bus, whatever drives them.", "kind")
	PCIDevicePresent = Gauge("nvgpu_pci_device_present", "Whether the device answers on the PCI bus: 0 when it reads as all ones, or has gone since the agent started.", "pci_bus_id", "kind")
	PCIDeviceBound   = Gauge("nvgpu_pci_device_bound", "Whether a driver is bound to the device, with which: 0 when none is.", "pci_bus_id", "kind", "driver")
)

var _ = Register(Collector{
	Name:    "pci_devices",
	Doc:     "GPUs and NVSwitches on the PCI bus, without the driver's help.",
	Tier:    Medium,
	Metrics: []*Metric{PCIDevices, PCIDevicePresent, PCIDeviceBound},
	Kernel: func(k host.Kernel) func(out *Readings) {
		b := &pciBus{answers: k.Answers, seen: map[string]*pciDevice{}}
		return func(out *Readings) {
			all, err := k.PCIDevices()
			if ret := ofKernel(err); ret != nvml.SUCCESS {
				out.Put(PCIDevices, 0, ret)
				return
			}
			b.read(all, out)
		}
	},
})

// A pciBus is the devices that were seen since the agent started.
type pciBus struct {
	answers func(address string) (bool, error)
	seen    map[string]*pciDevice // by address, maxKnown at most
}

// A pciDevice is one of them, and what it last said.
type pciDevice struct {
	host.PCIDevice
	there  bool
	asking atomic.Bool // it has not said whether it answers
	answer atomic.Pointer[bool]
}

func (b *pciBus) read(all []host.PCIDevice, out *Readings) {
	for _, d := range b.seen {
		d.there = false
	}
	for _, d := range all {
		s := b.seen[d.Address]
		if s == nil {
			if len(b.seen) == maxKnown {
				continue
			}
			s = new(pciDevice)
			b.seen[d.Address] = s
		}
		s.PCIDevice, s.there = d, true
	}
	b.ask()
	counts := map[string]int{}
	for _, d := range b.seen {
		labels := out.pciLabels(d.PCIDevice)
		counts[d.Kind] += int(Bool(d.there))
		if !d.there {
			out.Set(PCIDevicePresent, 0, labels...)
			continue
		}
		out.Set(PCIDeviceBound, Bool(d.Driver != ""), append(labels, d.Driver)...)
		if answer := d.answer.Load(); answer != nil {
			out.Set(PCIDevicePresent, Bool(*answer), labels...)
		} else {
			out.Fail(nvml.ERROR_TIMEOUT)
		}
	}
	for kind, n := range counts {
		out.Set(PCIDevices, float64(n), kind)
	}
	if len(counts) == 0 { // nor were there any: this need not be the bus that the GPUs are on
		out.Put(PCIDevices, 0, nvml.ERROR_NOT_SUPPORTED)
	}
}

// patience is how long a device may take to answer on the bus.
const patience = time.Second

// ask asks the devices that are there, each on a goroutine of its own: one
// that hangs keeps nothing of the others, and is asked again once it returns.
func (b *pciBus) ask() {
	var asked sync.WaitGroup
	for _, d := range b.seen {
		if !d.there || d.asking.Swap(true) {
			continue
		}
		d.answer.Store(nil)
		address := d.Address
		asked.Go(func() {
			if yes, err := b.answers(address); err == nil {
				d.answer.Store(&yes)
			}
			d.asking.Store(false)
		})
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-goes(asked.Wait):
	case <-t.C:
	}
}

// pciLabels returns what names d: the GPU that it is, if it is a known one, its
// address and its kind.
func (r *Readings) pciLabels(d host.PCIDevice) []string {
	own, _ := host.ParsePCI(d.Address)
	for _, id := range r.known() {
		if at, ok := host.ParsePCI(id.PCI); ok && at == own {
			return []string{strconv.Itoa(id.Index), id.UUID, d.Address, d.Kind}
		}
	}
	return []string{"", "", d.Address, d.Kind}
}
