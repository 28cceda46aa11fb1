package audit

import (
	"sync"
	"time"

	"gpusteward/collectors"
)

// Neighbours know which part of each GPU's time each process uses. Any goroutine may use them.
type Neighbours struct {
	mu  sync.Mutex
	all map[userOfGPU]useOfGPU
}

type userOfGPU struct {
	uuid string
	pid  int
}

type useOfGPU struct {
	seconds float64   // of GPU time
	sampled time.Time // until then; zero: unknown
	part    float64   // of the time between the last two samples
}

// Look takes what the driver's samples say by now.
func (g *Neighbours) Look(b Books) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[userOfGPU]useOfGPU{}
	for _, h := range b.DeviceProcesses {
		if h.Kind == collectors.KindServer {
			continue // of MPS: its time is that of its clients, who may be the one that is asked for
		}
		name := userOfGPU{h.UUID, h.Process.PID}
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

// Others returns the part of a GPU's time that other processes use, of the same
// workload or not: two notebooks of one user slow each other as well.
func (g *Neighbours) Others(uuid string, pid int) (part float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, u := range g.all {
		if name.uuid == uuid && name.pid != pid {
			part += u.part
		}
	}
	return min(1, part)
}
