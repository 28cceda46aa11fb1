package health

import (
	"cmp"
	"runtime"
	"runtime/metrics"
	"slices"
	"syscall"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health/incident"
)

// kept is the part of a Monitor that outlives a restart.
type kept struct {
	Cursor incident.Cursor `json:"cursor"` // of the kernel's log
	GPUs   []keptGPU       `json:"gpus"`
	Engine Saved           `json:"engine"`
}

type keptGPU struct {
	At     host.PCI        `json:"at"`
	Entity incident.Entity `json:"entity"`
}

// save stores the state. It logs a failure once.
func (m *Monitor) save(now time.Time) {
	m.saved, m.dirty = now, false
	k := kept{Cursor: m.cursor}
	for at, e := range m.gpus {
		k.GPUs = append(k.GPUs, keptGPU{at, e})
	}
	slices.SortFunc(k.GPUs, func(a, b keptGPU) int { return a.Entity.Compare(b.Entity) })
	var err error
	if k.Engine, err = m.engine.Save(m.Boot); err == nil {
		err = m.Store.Save(k)
	}
	switch {
	case err != nil && !m.unsaved:
		m.Log.Error("cannot save the state of health, retrying: a restart of the agent will forget latched faults",
			"err", err)
	case err == nil && m.unsaved:
		m.Log.Info("the state of health is saved again")
	}
	m.unsaved = err != nil
}

// Limits for the agent's use of this host.
const (
	mostMemory     = 256 << 20 // bytes from the system
	mostProcessor  = .25       // of a core
	mostGoroutines = 2000
)

// usage is the agent's use of resources at the last look.
type usage struct {
	at  time.Time
	cpu time.Duration
}

// account returns the agent's use of resources, and its losses since it began.
func (m *Monitor) account(now time.Time) (all []collectors.Sample) {
	sharing := float64(max(m.Sharing, 1))
	load := map[string]float64{
		"memory":     float64(fromSystem()) / mostMemory / sharing,
		"goroutines": float64(runtime.NumGoroutine()) / mostGoroutines / sharing,
		"events":     float64(len(m.observations)) / mostQueue, "state": collectors.Bool(m.unsaved) * 2,
	}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		cpu := time.Duration(r.Utime.Nano() + r.Stime.Nano())
		if passed := now.Sub(m.usage.at); !m.usage.at.IsZero() && passed > 0 {
			load["processor"] = float64(cpu-m.usage.cpu) / float64(passed) / mostProcessor / sharing
		}
		m.usage = usage{now, cpu}
	}
	l := m.correlator.Losses()
	lost := map[string]float64{"events": float64(m.dropped.Load()), "missed_by_nvml": float64(l.MissedByNVML),
		"missed_by_kernel": float64(l.MissedByKernel), "incidents": float64(l.ClosedEarly)}
	for into, f := range map[*map[string]float64]func() map[string]float64{&load: m.Load, &lost: m.Lost} {
		if f != nil {
			for name, v := range f() {
				(*into)[name] = v
			}
		}
	}
	for name, v := range load {
		all = append(all, collectors.Sample{Metric: Pressure, Labels: []string{name}, Value: v})
	}
	for name, v := range lost {
		all = append(all, collectors.Sample{Metric: TelemetryLost, Labels: []string{name}, Value: v})
	}
	slices.SortFunc(all, func(a, b collectors.Sample) int {
		return cmp.Or(cmp.Compare(a.Metric.Name, b.Metric.Name), cmp.Compare(a.Labels[0], b.Labels[0]))
	})
	return all
}

// fromSystem returns the bytes that Go has obtained from the system.
func fromSystem() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
