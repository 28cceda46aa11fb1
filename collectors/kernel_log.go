package collectors

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// What the kernel logged, since the start of its ring: also before the agent
// was there, and when NVML is dead. One fault can be several messages.
var (
	KernelXIDMessages = Counter("nvgpu_kernel_xid_messages_total", "Lines of the kernel's log with this XID of the GPU; one fault can be several.", "xid")
	NVSwitchSXIDs     = HostCounter("nvgpu_nvswitch_sxid_total", "Lines of the kernel's log with this SXid of an NVSwitch.", "pci_bus_id", "sxid")
)

var _ = Register(Collector{
	Name:    "kernel_xid",
	Doc:     "XIDs in the kernel's log; needs read access to /dev/kmsg.",
	Tier:    Medium,
	Metrics: []*Metric{KernelXIDMessages},
	Open: func(g *gpu.Device) Read {
		own, known := host.ParsePCI(g.PCI)
		l := &faultCounter{metric: KernelXIDMessages, labels: func(f host.Fault) []string {
			if !known || f.Switch || f.Device != own {
				return nil
			}
			return []string{strconv.Itoa(f.Code)}
		}}
		return func(_ *gpu.Device, out *Readings) { l.read(out) }
	},
})

var _ = Register(Collector{
	Name:    "nvswitch",
	Doc:     "SXids of the NVSwitches in the kernel's log; needs read access to /dev/kmsg.",
	Tier:    Medium,
	Metrics: []*Metric{NVSwitchSXIDs},
	Host: func(*gpu.Library) func(out *Readings) {
		l := &faultCounter{metric: NVSwitchSXIDs, labels: func(f host.Fault) []string {
			if !f.Switch {
				return nil
			}
			return []string{f.Address, strconv.Itoa(f.Code)}
		}}
		return l.read
	},
})

// A faultCounter counts the kernel's lines about faults, by labels; none are
// for somebody else's.
type faultCounter struct {
	metric *Metric
	labels func(f host.Fault) []string
	log    *host.KernelLog
	seen   map[string][]string
}

func (c *faultCounter) read(out *Readings) {
	if c.log == nil {
		log, err := host.OpenKernelLog(out.config.KernelLog)
		switch {
		case errors.Is(err, os.ErrNotExist):
			out.Put(c.metric, 0, nvml.ERROR_NOT_SUPPORTED)
			return
		case err != nil:
			out.Fail(nvml.ERROR_NO_PERMISSION)
			return
		}
		c.log, c.seen = log, map[string][]string{}
	}
	counts := map[string]float64{}
	for {
		r, more, err := c.log.Next()
		if err != nil {
			out.Fail(nvml.ERROR_OPERATING_SYSTEM)
			break
		}
		if !more {
			break
		}
		if !r.Kernel() {
			continue // anybody may have written it
		}
		if f, ok := host.ParseFault(r.Text); ok {
			if labels := c.labels(f); labels != nil && (len(c.seen) < maxSeries || c.seen[strings.Join(labels, " ")] != nil) {
				c.seen[strings.Join(labels, " ")] = labels
				counts[strings.Join(labels, " ")]++
			}
		}
	}
	for key, labels := range c.seen {
		out.Add(c.metric, counts[key], labels...)
	}
}
