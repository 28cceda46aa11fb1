package collectors

import (
	"cmp"
	"slices"
	"time"

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

// KindClient is that of a client of MPS, which only the driver knows.
const KindClient = "mps"

// Serves returns the workload whose work an MPS server does, given the servers and
// their clients on the GPU: that of its clients. It is nil if they are of several
// workloads. A server without clients does its own work, and so does each of
// several of one user, because any process can take the server's name.
func Serves(server host.Process, servers, clients []host.Process) *host.Workload {
	var of *host.Workload
	for _, s := range servers {
		if s.PID != server.PID && s.UID == server.UID {
			return server.Workload
		}
	}
	for _, c := range clients {
		if len(servers) > 1 && c.UID != server.UID {
			continue // another's
		}
		if c.Workload == nil || of != nil && of.Key != c.Workload.Key {
			return nil
		}
		of = c.Workload
	}
	return cmp.Or(of, server.Workload)
}

// DeviceProcesses returns the processes on the GPUs as of the last fast pass, each
// once per GPU or MIG device. It leaves out GPUs that have not answered for two
// fast intervals: their processes are unknown.
func (h *Host) DeviceProcesses() []DeviceProcess {
	now, s, fast := time.Now(), h.state.Load(), h.Interval()
	var all []DeviceProcess
	for _, r := range s.shown() {
		for _, p := range s.snapshot(r).fresh(now, fast) {
			all = append(all, p.Holders...)
		}
	}
	return all
}

// A Stay is a process on a GPU, with the time of its stay.
type Stay struct {
	Process host.Process // only the PID is set if the kernel does not know it
	Kind    string       // that of a DeviceProcess
	After   time.Time    // when the driver did not list it yet; zero if the driver was never asked before
	Until   time.Time    // when the driver no longer listed it; zero while it does
}

// Stays returns the processes on a GPU now and in the last minutes, as of the
// driver's last answer. The slice must not be changed.
func (h *Host) Stays(uuid string) []Stay {
	s := h.state.Load()
	for _, r := range s.shown() {
		p := r.peer.Load()
		if p == nil || p.UUID != uuid {
			continue
		}
		snap := s.snapshot(r)
		if snap == nil {
			return nil
		}
		if i := slices.IndexFunc(snap.passes, func(p *pass) bool { return p.collector.Lists }); i >= 0 {
			return snap.passes[i].Stays
		}
	}
	return nil
}
