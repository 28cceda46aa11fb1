package collectors

import (
	"slices"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// A DeviceProcess is a process on a GPU, according to the driver and the kernel.
type DeviceProcess struct {
	UUID string // of the GPU, or of its MIG device
	// Process has no workload while its name is being looked up. An unknown
	// process has only a PID.
	Process host.Process
	// Unknown means that the kernel does not know the PID: the process has
	// ended, or belongs to another PID namespace.
	Unknown bool
	// Kind is compute, graphics, mps (a client) or server. A server has the
	// name of the MPS server, which any process can take.
	Kind   string
	Memory uint64 // bytes
	Known  bool   // whether Memory is known
	// SM is the GPU time of the process in seconds, since it was first seen,
	// from the driver's samples.
	SM float64
	// Busy is the time in seconds in which it read or wrote GPU memory, from
	// the same samples. Both restart at 0 when the driver is reopened.
	Busy float64
	// Sampled is the end of the time counted in SM and Busy, on the wall clock;
	// zero if they are unknown.
	Sampled time.Time
	At      time.Time // when the driver answered
}

// KindServer is the DeviceProcess.Kind of a process named like the MPS server. The
// server holds the GPU for its clients. Only its executable shows whether the
// process is one.
const KindServer = "server"

// serverComm is the name of the MPS server, nvidia-cuda-mps-server, as the
// kernel truncates it.
const serverComm = "nvidia-cuda-mps"

// DeviceProcesses returns the processes on the GPUs as of the last fast pass, each
// once per GPU or MIG device. It leaves out GPUs that have not answered for two
// fast intervals: their processes are unknown.
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

// where returns the UUID of the holder's MIG device, or the GPU's without a
// known one.
func where(g *gpu.Device, h *holder) string {
	if h.gi == noInstance {
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
