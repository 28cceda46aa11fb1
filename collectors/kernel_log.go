package collectors

import (
	"context"
	"strconv"
	"sync"
	"time"

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
			out.faults.put(out, KernelXIDMessages, func(f faulted) []string {
				if !known || f.nvswitch != "" || f.device != own {
					return nil
				}
				return []string{f.code}
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
			out.faults.put(out, NVSwitchSXIDs, func(f faulted) []string {
				if f.nvswitch == "" {
					return nil
				}
				return []string{f.nvswitch, f.code}
			})
		}
	},
})

// A faulted is a device and a code that the kernel logged for it.
type faulted struct {
	device   host.PCI // a GPU
	nvswitch string   // an NVSwitch, with its address as the kernel writes it
	code     string
}

// kernelFaults counts the kernel's lines about faults, once for all collectors.
// It is safe for concurrent use.
type kernelFaults struct {
	mu     sync.Mutex
	lines  map[faulted]float64
	next   uint64 // sequence number of the first uncounted record
	failed error  // the reason that the log cannot be read
}

// Pauses after a failure to read the log.
const followFirst, followMost = time.Second, time.Minute

// follow counts until ctx ends. After a failure, log starts over; records that
// it delivers again are not counted again.
func (k *kernelFaults) follow(ctx context.Context, log func(ctx context.Context, each func(host.Record)) error) {
	for wait := followFirst; ; wait = min(2*wait, followMost) {
		err := log(ctx, k.line)
		k.mu.Lock()
		k.failed = err
		k.mu.Unlock()
		if !sleep(ctx, wait) {
			return
		}
	}
}

// line counts a record.
func (k *kernelFaults) line(r host.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failed = nil
	if r.Sequence < k.next {
		return
	}
	k.next = r.Sequence + 1
	f, ok := host.ParseFault(r.Text)
	if !ok || !r.Kernel() { // any user may have written it
		return
	}
	key := faulted{device: f.Device, code: strconv.Itoa(f.Code)}
	if f.Switch {
		key.device, key.nvswitch = host.PCI{}, f.Address
	}
	if k.lines == nil {
		k.lines = map[faulted]float64{}
	}
	if k.lines[key] > 0 || len(k.lines) < maxSeries {
		k.lines[key]++
	}
}

// put puts the number of lines by labels. Faults without labels belong to
// another metric.
func (k *kernelFaults) put(out *Readings, m *Metric, labels func(f faulted) []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed != nil {
		out.Put(m, 0, ofKernel(k.failed))
	}
	for f, n := range k.lines {
		if l := labels(f); l != nil {
			out.Set(m, n, l...)
		}
	}
}
