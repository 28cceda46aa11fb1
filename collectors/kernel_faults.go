package collectors

import (
	"context"
	"strconv"
	"sync"

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
	failed error // the reason that the log cannot be read
}

// follow counts until ctx ends.
func (k *KernelFaults) follow(ctx context.Context, log func(ctx context.Context, each func(host.Record)) error) {
	fails := func(err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.failed = err
	}
	host.FollowLog(ctx, func(ctx context.Context, each func(host.Record)) error {
		return log(ctx, func(r host.Record) { fails(nil); each(r) })
	}, k.line, func(err error, _ bool) { fails(err) })
}

// line counts a record.
func (k *KernelFaults) line(r host.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
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
