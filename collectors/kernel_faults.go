package collectors

import (
	"context"
	"strconv"
	"sync"
	"time"

	"gpusteward/collectors/host"
)

// A LoggedFault is a device and a code that the kernel logged for it.
type LoggedFault struct {
	Device host.PCI // a GPU
	Switch string   // an NVSwitch, with its address as the kernel writes it
	Code   string
}

// KernelFaults counts the kernel's lines about faults, once for all collectors.
// It is safe for concurrent use.
type KernelFaults struct {
	mu     sync.Mutex
	lines  map[LoggedFault]float64
	next   uint64 // sequence number of the first uncounted record
	failed error  // the reason that the log cannot be read
}

// Pauses after a failure to read the log.
const followFirst, followMost = time.Second, time.Minute

// follow counts until ctx ends. After a failure, log starts over; records that
// it delivers again are not counted again.
func (k *KernelFaults) follow(ctx context.Context, log func(ctx context.Context, each func(host.Record)) error) {
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
func (k *KernelFaults) line(r host.Record) {
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
	key := LoggedFault{Device: f.Device, Code: strconv.Itoa(f.Code)}
	if f.Switch {
		key.Device, key.Switch = host.PCI{}, f.Address
	}
	if k.lines == nil {
		k.lines = map[LoggedFault]float64{}
	}
	if k.lines[key] > 0 || len(k.lines) < MaxSeries {
		k.lines[key]++
	}
}

// Put puts the number of lines by labels. Faults without labels belong to
// another metric.
func (k *KernelFaults) Put(out *Readings, m *Metric, labels func(f LoggedFault) []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed != nil {
		out.Put(m, 0, OfKernel(k.failed))
	}
	for f, n := range k.lines {
		if l := labels(f); l != nil {
			out.Set(m, n, l...)
		}
	}
}
