package workloads

import (
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// serverComm is the name of the MPS server, nvidia-cuda-mps-server, as the
// kernel truncates it.
const serverComm = "nvidia-cuda-mps"

// A tally is the use of the GPU by a process since it was first seen there.
type tally struct {
	start uint64 // see host.Process; 0 while the kernel does not know the process
	used  engines
	until time.Time // end of the counted time
}

// tally adds the use in the current window to the holders, and forgets
// processes that left.
func (u *users) tally(holders []*holder, used map[uint32]spent, counted bool) {
	all := make(map[uint32]tally, len(holders))
	for _, h := range holders {
		if _, done := all[h.pid]; done {
			continue // the process in another instance
		}
		t, known := u.tallies[h.pid]
		if !known || !h.unknown && t.start != h.process.Start {
			t = tally{start: h.process.Start} // another process with the same PID
		}
		if counted {
			t.used, t.until = t.used.plus(used[h.pid].engines), u.seen
		}
		all[h.pid] = t
	}
	u.tallies = all
}

// deviceProcesses returns the holders with their MIG devices.
func (u *users) deviceProcesses(g *gpu.Device, now time.Time, holders []*holder) []collectors.DeviceProcess {
	type seat struct {
		uuid string
		pid  uint32
	}
	all, place := make([]collectors.DeviceProcess, 0, len(holders)), make(map[seat]int, len(holders))
	for _, h := range holders {
		uuid := where(g, h)
		i, more := place[seat{uuid, h.pid}]
		if !more {
			i, place[seat{uuid, h.pid}] = len(all), len(all)
			t := u.tallies[h.pid]
			all = append(all, collectors.DeviceProcess{UUID: uuid, Process: h.process, Unknown: h.unknown,
				Kind: h.kind, Known: true,
				SM: t.used[sm], Busy: t.used[busy], Sampled: t.until, At: now})
			all[i].Process.PID = int(h.pid)
			if h.serves() {
				all[i].Kind = collectors.KindServer
			}
		}
		if h.memory == unknownMemory {
			all[i].Known = false
			continue
		}
		all[i].Memory += h.memory
	}
	return all
}

// where returns the UUID of the holder's MIG device, or the GPU's without a
// known one.
func where(g *gpu.Device, h *holder) string {
	if h.gi == gpu.NoInstance {
		return g.UUID
	}
	on := func(m *gpu.MIG) bool { return uint32(m.GI) == h.gi && uint32(m.CI) == h.ci }
	if !slices.ContainsFunc(g.Instances(), on) {
		_ = g.RefreshInstances() // the instance is newer than the last look; if it fails, the GPU's UUID will do
	}
	if i := slices.IndexFunc(g.Instances(), on); i >= 0 {
		return g.Instances()[i].UUID
	}
	return g.UUID
}
