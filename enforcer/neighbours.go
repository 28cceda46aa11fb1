package enforcer

import (
	"sync"
	"time"

	"gpusteward/enforcer/audit"
)

// neighbours know which part of each GPU's time each workload uses.
type neighbours struct {
	mu  sync.Mutex
	all map[userOfGPU]useOfGPU
}

type userOfGPU struct{ uuid, workload string }

type useOfGPU struct {
	seconds float64   // of GPU time
	sampled time.Time // until then; zero: unknown
	part    float64   // of the time between the last two samples
}

// look takes what the driver's samples say by now.
func (g *neighbours) look(b audit.Books) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[userOfGPU]useOfGPU{}
	for _, h := range b.DeviceProcesses {
		if h.Process.Workload == nil {
			continue
		}
		name := userOfGPU{h.UUID, h.Process.Workload.Key}
		u := all[name]
		u.seconds += h.SM
		if h.Sampled.After(u.sampled) {
			u.sampled = h.Sampled
		}
		all[name] = u
	}
	for name, u := range all {
		switch last := g.all[name]; {
		case u.sampled.IsZero():
			u.part = 1
		case u.sampled.After(last.sampled) && !last.sampled.IsZero():
			u.part = min(1, max(0, (u.seconds-last.seconds)/u.sampled.Sub(last.sampled).Seconds()))
		default:
			u.part = last.part
		}
		all[name] = u
	}
	g.all = all
}

// others returns the part of a GPU's time that other workloads use.
func (g *neighbours) others(uuid, workload string) (part float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, u := range g.all {
		if name.uuid == uuid && name.workload != workload {
			part += u.part
		}
	}
	return min(1, part)
}
