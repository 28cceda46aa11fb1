package workloads

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// Users of the GPU. A workload is a pod, a container, a systemd unit, a Slurm
// job or a user: see host.Workload. Its series end with its last process on the
// GPU.
var (
	Processes      = collectors.Gauge("nvgpu_processes", "Processes that have a context on the GPU, by type: compute, graphics or MPS.", "type")
	WorkloadMemory = collectors.Gauge("nvgpu_workload_memory_used_bytes",
		"Bytes of GPU memory held by the workload's processes; gi is their MIG GPU instance, or empty.",
		"workload", "gi")
	WorkloadProcesses = collectors.Gauge("nvgpu_workload_processes",
		"Processes of the workload on the GPU.", "workload", "type")

	WorkloadSM = collectors.Counter("nvgpu_workload_sm_seconds_total",
		"Seconds the workload's kernels ran on the GPU, from the driver's samples of its processes.", "workload")
	WorkloadMemoryBusy = collectors.Counter("nvgpu_workload_memory_busy_seconds_total",
		"Seconds the workload read or wrote GPU memory, from the driver's samples of its processes.", "workload")
	WorkloadEncoder = collectors.Counter("nvgpu_workload_encoder_seconds_total",
		"Seconds the workload used the video encoder.", "workload")
	WorkloadDecoder = collectors.Counter("nvgpu_workload_decoder_seconds_total",
		"Seconds the workload used the video decoder.", "workload")
	WorkloadUse = collectors.Gauge("nvgpu_workload_utilization_ratio",
		"Utilization of the engine by the workload, over the driver's last window.", "workload", "engine")
	WorkloadEnergy = collectors.Counter("nvgpu_workload_energy_joules_total",
		"Joules attributed to the workload by its share of SM time: an estimate that leaves out the energy of "+
			"an idle GPU.", "workload")

	UnknownMemory = collectors.Gauge("nvgpu_unknown_process_memory_bytes",
		"Bytes of GPU memory of a process that the driver lists and the kernel does not know.", "pid")

	ProcessInfo = collectors.Gauge("nvgpu_process_info",
		"A process on the GPU, always 1.", "pid", "comm", "user", "workload", "type", "gi", "ci")
	ProcessMemory = collectors.Gauge("nvgpu_process_memory_used_bytes", "Bytes of GPU memory held by the process.", "pid")
	ProcessUse    = collectors.Gauge("nvgpu_process_utilization_ratio",
		"Utilization of the engine by the process, over the driver's last window.", "pid", "engine")
)

// maxHolders bounds the workloads and the processes shown for a GPU: those with
// the most memory.
const maxHolders = 64

var _ = collectors.Register(collectors.Collector{
	Name:  "processes",
	Lists: true,
	Doc:   "Users of the GPU: memory, engine time and energy by workload, and by process with per_process.",
	Tier:  collectors.Fast,
	Metrics: []*collectors.Metric{
		Processes, WorkloadMemory, WorkloadProcesses, WorkloadSM, WorkloadMemoryBusy, WorkloadEncoder,
		WorkloadDecoder, WorkloadUse, WorkloadEnergy, UnknownMemory, AllocationInfo, AllocationClaimInfo,
		AllocatedIdle, HolderInfo, ProcessInfo, ProcessMemory, ProcessUse,
	},
	Open: openUsers,
})

// users is the state kept between passes about the users of a GPU.
type users struct {
	usage
	pending map[uint32]spent     // by PID, for processes without a known workload
	tallies map[uint32]tally     // by PID, for processes on the GPU
	present map[string]time.Time // when each workload last had a process on the GPU
	swept   time.Time

	allocated time.Time // end of the counted allocation time

	stays []collectors.Stay // immutable
	asked time.Time         // when the driver last listed the processes
}

func openUsers(*gpu.Device) collectors.Read {
	u := &users{usage: usage{young: map[uint32]time.Time{}}, pending: map[uint32]spent{},
		present: map[string]time.Time{}}
	return u.read
}

// A holder is a process that holds memory on the GPU or on one of its
// instances.
type holder struct {
	pid      uint32
	kind     string // compute, graphics or mps; a server is compute
	gi, ci   uint32
	memory   uint64 // bytes, or unknownMemory
	use      engines
	process  host.Process
	owner    *host.Workload // whose work it does; nil until that is known
	workload string         // the owner's key, or ""
	unknown  bool           // the kernel could not identify it
	gone     bool           // the kernel has no such process
}

const unknownMemory = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE

// A workload is the total of one workload's holders.
type workload struct {
	name    string
	memory  map[uint32]uint64 // by GPU instance
	unknown bool              // the driver gave no memory for one of the processes
	byKind  map[string]int
	use     engines
	sum     uint64
	owner   *host.Workload
}

func (u *users) read(g *gpu.Device, out *collectors.Readings) {
	holders, ret := list(g)
	if ret != nvml.SUCCESS {
		out.Put(Processes, 0, ret, "")
		out.Stays = u.stays
		return
	}
	counts := map[string]int{}
	for _, h := range holders {
		counts[h.kind]++
	}
	for _, kind := range holderKinds {
		out.Set(Processes, float64(counts[kind]), kind)
	}
	window, ret := u.update(g, out.Now, holders)
	if gpu.Unsupported(ret) {
		out.Put(WorkloadSM, 0, ret)
	} else if ret != nvml.SUCCESS {
		out.Fail(ret)
	}
	u.identify(holders, out)
	out.Stays = u.stay(out.Now, holders)
	workloads := group(holders)
	u.account(out, holders, workloads, window)
	out.Holders = u.deviceProcesses(g, out.Now, holders)
	u.put(out, workloads, ret != nvml.SUCCESS)
	putUnknown(out, holders)
	u.allocations(g, out, workloads, window)
	putHolders(g, out, holders)
	if out.Config.PerProcess {
		putProcesses(out, holders, ret != nvml.SUCCESS)
	}
	u.sweep(out)
}

var holderKinds = []string{"compute", "graphics", "mps"}

// list returns the processes on the GPU, once per instance. The list of compute
// processes includes MPS clients, and can include graphics processes.
func list(g *gpu.Device) ([]*holder, nvml.Return) {
	type place struct{ pid, gi, ci uint32 }
	found := map[place]*holder{}
	var all []*holder
	for i, ask := range []func() ([]nvml.ProcessInfo, nvml.Return){
		g.GetComputeRunningProcesses, g.GetGraphicsRunningProcesses, g.GetMPSComputeRunningProcesses,
	} {
		infos, ret := ask()
		if ret != nvml.SUCCESS && (i == 0 || !gpu.Unsupported(ret)) {
			return nil, ret
		}
		for _, p := range infos {
			at := place{p.Pid, p.GpuInstanceId, p.ComputeInstanceId}
			h := found[at]
			if h == nil {
				h = &holder{pid: p.Pid, kind: holderKinds[i], gi: p.GpuInstanceId, ci: p.ComputeInstanceId,
					memory: p.UsedGpuMemory}
				found[at] = h
				all = append(all, h)
			} else if holderKinds[i] == "mps" {
				h.kind = "mps"
			}
		}
	}
	return all, nvml.SUCCESS
}

// identify finds the owners of the holders.
func (u *users) identify(holders []*holder, out *collectors.Readings) {
	for _, h := range holders {
		p, err := out.Processes.Lookup(int(h.pid))
		if h.unknown = err != nil; h.unknown {
			h.gone = errors.Is(err, host.ErrGone)
			continue // it has ended, or belongs to another PID namespace
		}
		h.process, h.owner = p, p.Workload
	}
	serve(holders)
	for _, h := range holders {
		if h.owner != nil {
			h.workload = h.owner.Key
		}
	}
}

// serve makes the clients of each MPS server the owner of its work: the driver
// counts theirs as the server's. If there are several, none of them has it, nor
// has the workload in which the server happened to be started.
func serve(holders []*holder) {
	for _, h := range holders {
		if !h.serves() {
			continue
		}
		var servers, clients []host.Process
		pending := false
		for _, o := range holders {
			switch {
			case o.unknown || o.gi != h.gi:
			case o.serves():
				servers = append(servers, o.process)
			case o.kind == collectors.KindClient:
				clients, pending = append(clients, o.process), pending || o.process.Workload == nil
			}
		}
		h.owner = collectors.Serves(h.process, servers, clients)
		if h.owner == nil && !pending {
			h.owner = &host.Workload{Key: fmt.Sprintf("mps:%d", h.process.UID), Kind: host.KindMPS}
		}
	}
}

// serves reports whether h has the name of the MPS server.
func (h *holder) serves() bool { return h.kind == holderKinds[0] && h.process.Comm == serverComm }

// group sums the holders by workload, and sorts by memory, largest first.
func group(holders []*holder) []*workload {
	byName := map[string]*workload{}
	for _, h := range holders {
		if h.workload == "" {
			continue
		}
		w := byName[h.workload]
		if w == nil {
			w = &workload{name: h.workload, owner: h.owner, memory: map[uint32]uint64{},
				byKind: map[string]int{}}
			byName[h.workload] = w
		}
		if h.memory == unknownMemory {
			w.unknown = true
		} else {
			w.memory[h.gi] += h.memory
			w.sum += h.memory
		}
		w.byKind[h.kind]++
		w.use = w.use.plus(h.use)
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *workload) int {
		return cmp.Or(cmp.Compare(b.sum, a.sum), cmp.Compare(a.name, b.name))
	})
}

// account adds the use in a window to the counters of its workload, shown or
// not. The use of a process without a known workload waits until it is known.
func (u *users) account(out *collectors.Readings, holders []*holder, workloads []*workload, window time.Duration) {
	for _, w := range workloads {
		u.present[w.name] = out.Now
	}
	names, waiting := map[uint32]string{}, map[uint32]bool{}
	for _, h := range holders {
		names[h.pid] = h.workload
		waiting[h.pid] = h.workload == "" && !h.unknown
	}
	used := u.take(window)
	u.tally(holders, used, window > 0)
	for pid, s := range used {
		u.pending[pid] = u.pending[pid].plus(s)
	}
	for pid, s := range u.pending {
		if waiting[pid] {
			continue
		}
		delete(u.pending, pid)
		if name := names[pid]; name != "" { // otherwise the process ended without a name
			u.present[name] = out.Now
			for i, m := range engineSeconds {
				out.Keep(m, s.engines[i], name)
			}
			out.Keep(WorkloadEnergy, s.joules, name)
		}
	}
}

// put shows the maxHolders largest workloads.
func (u *users) put(out *collectors.Readings, workloads []*workload, noUse bool) {
	for i, w := range workloads {
		if i >= maxHolders {
			out.Drop(WorkloadProcesses)
			continue
		}
		for gi, bytes := range w.memory {
			if !w.unknown {
				out.Set(WorkloadMemory, float64(bytes), w.name, instance(gi))
			}
		}
		for kind, n := range w.byKind {
			out.Set(WorkloadProcesses, float64(n), w.name, kind)
		}
		if noUse {
			continue
		}
		for i, m := range engineSeconds {
			out.Add(m, 0, w.name)
			out.Set(WorkloadUse, min(1, w.use[i]), w.name, engineNames[i])
		}
		out.Add(WorkloadEnergy, 0, w.name)
	}
}

// putProcesses shows the maxHolders largest processes.
func putProcesses(out *collectors.Readings, holders []*holder, noUse bool) {
	known := slices.DeleteFunc(slices.Clone(holders), func(h *holder) bool { return h.unknown })
	size := func(h *holder) uint64 { return h.memory + 1 } // unknown memory sorts last
	slices.SortFunc(known,
		func(a, b *holder) int { return cmp.Or(cmp.Compare(size(b), size(a)), cmp.Compare(a.pid, b.pid)) })
	shown := map[uint32]bool{}
	memory := map[uint32]float64{}
	for i, h := range known {
		if i >= maxHolders {
			out.Drop(ProcessInfo)
			continue
		}
		pid := strconv.Itoa(int(h.pid))
		out.Set(ProcessInfo, 1, pid, h.process.Comm, h.process.User, h.workload, h.kind, instance(h.gi), instance(h.ci))
		if h.memory != unknownMemory {
			memory[h.pid] += float64(h.memory)
		}
		if shown[h.pid] || noUse {
			continue
		}
		shown[h.pid] = true
		for i, e := range engineNames {
			out.Set(ProcessUse, min(1, h.use[i]), pid, e)
		}
	}
	for pid, bytes := range memory {
		out.Set(ProcessMemory, bytes, strconv.Itoa(int(pid)))
	}
}

// putUnknown shows the processes that the kernel does not know. In a PID
// namespace other than the host's it shows nothing, because the kernel knows
// none of them there.
func putUnknown(out *collectors.Readings, holders []*holder) {
	memory := map[uint32]uint64{}
	for _, h := range holders {
		if h.gone && h.memory != unknownMemory {
			memory[h.pid] += h.memory
		}
	}
	if len(memory) == 0 || !out.Processes.Whole() {
		return
	}
	pids := slices.SortedFunc(maps.Keys(memory),
		func(a, b uint32) int { return cmp.Or(cmp.Compare(memory[b], memory[a]), cmp.Compare(a, b)) })
	for _, pid := range pids[:min(len(pids), maxHolders)] {
		out.Set(UnknownMemory, float64(memory[pid]), strconv.Itoa(int(pid)))
	}
}

// instance names a MIG instance; "" means none.
func instance(id uint32) string {
	if id == gpu.NoInstance {
		return ""
	}
	return strconv.FormatUint(uint64(id), 10)
}

// The counters of a workload that left continue if it returns within
// keepCounters, for at most maxKept workloads.
const (
	keepCounters = 10 * time.Minute
	maxKept      = 1024
)

// sweep forgets workloads that left long ago, or every workload that left if
// there are too many.
func (u *users) sweep(out *collectors.Readings) {
	keep := keepCounters
	if len(u.present) > maxKept {
		keep = 0
	} else if out.Now.Sub(u.swept) < time.Minute {
		return
	}
	u.swept = out.Now
	out.Forget(func(labels []string) bool {
		last, known := u.present[labels[0]]
		if !known { // from before the driver was opened again
			last, u.present[labels[0]] = out.Now, out.Now
		}
		return out.Now.Sub(last) > keep
	})
	maps.DeleteFunc(u.present, func(_ string, last time.Time) bool { return out.Now.Sub(last) > keep })
}
