package collectors

import (
	"slices"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// A DeviceProcess is a process on a GPU, as the driver and the kernel say.
type DeviceProcess struct {
	UUID    string       // of the GPU, or of its MIG device
	Process host.Process // its workload is nil while its name is asked for; of an unknown one there is the PID alone
	Unknown bool         // the kernel does not know the PID: it has ended, or is of another PID namespace
	Kind    string       // compute, graphics, mps (a client) or server: one that is called like the server of MPS, as any process can call itself
	Memory  uint64       // bytes
	Known   bool         // Memory is
	SM      float64      // seconds that its kernels had the GPU, since it was first seen; from the driver's samples
	Busy    float64      // seconds that it read or wrote the GPU's memory, likewise; both begin again at 0 when the driver is opened again
	Sampled time.Time    // until when SM and Busy are counted, on the wall clock; zero where they are not known
	At      time.Time    // when the driver was asked
}

// KindServer is the DeviceProcess.Kind of what is called like the server of
// MPS. It holds the GPU for its clients. Nobody but a look at what it runs can
// tell whether it is one.
const KindServer = "server"

// serverComm is the name of MPS's server, nvidia-cuda-mps-server, as the kernel
// cuts it.
const serverComm = "nvidia-cuda-mps"

// DeviceProcesses returns the processes on the GPUs, each once for each GPU or
// MIG device, as of the last pass of the fast tier. Those of a GPU that has not
// answered for two intervals of the tier are left out: nobody knows what is
// there.
func (h *Host) DeviceProcesses() []DeviceProcess {
	now, s, fast := time.Now(), h.state.Load(), h.Interval()
	var all []DeviceProcess
	for _, r := range s.shown() {
		for _, p := range s.snapshot(r).fresh(now, fast) {
			all = append(all, p.holders...)
		}
	}
	return all
}

// A tally is what a process did since it was first seen on the GPU.
type tally struct {
	start uint64 // see host.Process; 0 while the kernel does not know it
	used  engines
	until time.Time // until when it is counted
}

// tally adds to the holders' what they used in the window that was counted
// now, and forgets who has left.
func (u *users) tally(holders []*holder, used map[uint32]spent, counted bool) {
	all := make(map[uint32]tally, len(holders))
	for _, h := range holders {
		if _, done := all[h.pid]; done {
			continue // in another instance
		}
		t, known := u.tallies[h.pid]
		if !known || !h.unknown && t.start != h.process.Start {
			t = tally{start: h.process.Start} // another one, even if it has the PID
		}
		if counted {
			t.used, t.until = t.used.plus(used[h.pid].engines), u.seen
		}
		all[h.pid] = t
	}
	u.tallies = all
}

// deviceProcesses are the holders, with the MIG devices that they are on.
func (u *users) deviceProcesses(g *gpu.Device, now time.Time, holders []*holder) []DeviceProcess {
	type seat struct {
		uuid string
		pid  uint32
	}
	all, place := make([]DeviceProcess, 0, len(holders)), make(map[seat]int, len(holders))
	for _, h := range holders {
		uuid := where(g, h)
		i, more := place[seat{uuid, h.pid}]
		if !more {
			i, place[seat{uuid, h.pid}] = len(all), len(all)
			t := u.tallies[h.pid]
			all = append(all, DeviceProcess{UUID: uuid, Process: h.process, Unknown: h.unknown, Kind: h.kind, Known: true,
				SM: t.used[sm], Busy: t.used[busy], Sampled: t.until, At: now})
			all[i].Process.PID = int(h.pid)
			if h.kind == holderKinds[0] && h.process.Comm == serverComm {
				all[i].Kind = KindServer
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

// where returns the UUID of the MIG device that a holder is on: the GPU's where
// there is none, or none that is known.
func where(g *gpu.Device, h *holder) string {
	if h.gi == noInstance {
		return g.UUID
	}
	on := func(m *gpu.MIG) bool { return uint32(m.GI) == h.gi && uint32(m.CI) == h.ci }
	if !slices.ContainsFunc(g.Instances(), on) {
		g.RefreshInstances() // it is newer than the last look
	}
	if i := slices.IndexFunc(g.Instances(), on); i >= 0 {
		return g.Instances()[i].UUID
	}
	return g.UUID
}
