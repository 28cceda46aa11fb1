package sim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/broker"
	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
)

// process is a process on a GPU.
type process struct {
	broker.Process
	mode   nvml.ProcessMode
	hidden bool // the driver does not report its memory
	ghost  bool // it has ended, unnoticed by the driver
	gi, ci uint32
	from   int64 // step in which it began
	owner  scenarios.Owner
}

// comm returns the process's name as in the kernel: without a path, cut to 15
// bytes.
func (p *process) comm() string {
	name := p.Name[strings.LastIndexByte(p.Name, '/')+1:]
	return name[:min(len(name), 15)]
}

// slot is a place for short processes.
type slot struct {
	until int64 // step at which the process or the pause ends
	alive bool
	count int
	owner scenarios.Owner
}

const (
	churnSlots = 5      // maximum number of short processes at once
	churnPID   = 20_000 // of the first short process
	crowdPods  = 64     // pods of a crowd on a GPU
	crowdPID   = 200_000
	crowdPIDs  = 10_000 // from GPU to GPU; no GPU has the memory for so many
)

// settle creates the permanent processes.
func (g *gpu) settle() {
	g.procs, g.names = nil, map[string]scenarios.ContainerName{}
	pid := 3000 + 700*g.index + int(noise.Hash(g.seed, 90)%97)
	switch {
	case len(g.spec.Processes) > 0:
		g.settleOwn()
	case len(g.spec.VGPUs) > 0:
	case len(g.spec.MIG) > 0:
		g.settleMIG(pid)
	case g.spec.Crowd > 0:
		for i := range g.spec.Crowd {
			g.stay(process{
				Process: broker.Process{PID: crowdPID + g.index*crowdPIDs + i, Name: "python3",
					Memory: scenarios.CrowdMemory << 20, Own: 1},
				gi: noInstance, ci: noInstance, owner: g.fill(worker, g.index*crowdPods+i%crowdPods),
			})
		}
	case g.spec.Load == "churn":
		g.slots = make([]slot, churnSlots)
		for i := range g.slots {
			g.slots[i].owner = g.fill(batch, i)
		}
	default:
		for i, r := range g.load.procs {
			g.stay(process{
				Process: broker.Process{PID: pid + 3*i, Name: r.name, Memory: mebibytes(r.part * float64(g.model.Memory)),
					Own: r.share},
				gi: noInstance, ci: noInstance, owner: g.fill(r.owner, i),
			})
		}
	}
	g.weigh()
}

// settleOwn creates the scenario's own processes.
func (g *gpu) settleOwn() {
	clients, daemon := 0.0, -1 // weight, index
	for i, p := range g.spec.Processes {
		share := cmp.Or(p.Share, 1)
		switch {
		case p.Idle:
			share = 0
		case p.Mode() == nvml.PROCESS_MODE_MPS:
			clients, share = clients+share, 0
		case p.Type == scenarios.MPSServer:
			daemon, share = i, 0
		}
		g.stay(process{
			Process: broker.Process{PID: p.PID, Name: p.Name, Memory: p.Memory << 20, Own: share},
			mode:    p.Mode(), hidden: p.MemoryUnknown,
			gi: noInstance, ci: noInstance, owner: g.fill(p.Owner, i),
		})
	}
	if daemon >= 0 {
		g.procs[daemon].Own = clients
	}
}

// stay adds a process that has existed for up to two hours.
func (g *gpu) stay(p process) {
	p.from = -preroll - int64(noise.Hash(g.host.seed, uint64(p.PID))%72_000)
	g.add(p)
}

// add adds a process.
func (g *gpu) add(p process) {
	p.Workload = g.workload(p.owner)
	g.procs = append(g.procs, p)
}

// weigh gives each process its part of the work, and sums up the weights.
func (g *gpu) weigh() {
	g.broker.Enrol()
	g.weight = 0
	for i := range g.procs {
		g.weight += g.procs[i].Share
	}
}

// mebibytes rounds bytes to whole MiB.
func mebibytes(bytes float64) uint64 { return uint64(bytes/(1<<20)+0.5) << 20 }

// populate ends and starts the short processes of a step.
func (g *gpu) populate() {
	for i := range g.slots {
		s := &g.slots[i]
		if g.n < s.until {
			continue
		}
		pid := churnPID + scenarios.MaxGPUs*churnSlots*(s.count%1000) + churnSlots*g.index + i
		h := noise.Hash(g.seed+uint64(i), uint64(s.count)+9000)
		if s.alive {
			g.procs = slices.DeleteFunc(g.procs, func(p process) bool { return p.PID == pid })
			s.count++
			s.until = g.n + 10 + int64(h%250)
		} else {
			g.add(process{
				Process: broker.Process{PID: pid, Name: "python3",
					Memory: mebibytes(float64(g.model.Memory) * (0.01 + 0.12*noise.Ratio(h))),
					Own:    0.05 + 0.3*noise.Ratio(noise.Hash(h, 1))},
				gi: noInstance, ci: noInstance,
				from: g.n, owner: s.owner,
			})
			s.until = g.n + 15 + int64(h%180)
		}
		s.alive = !s.alive
		g.weigh()
	}
}

// used returns the memory in use, in bytes.
func (g *gpu) used() uint64 {
	sum := g.trouble.orphan
	for i := range g.procs {
		sum += g.procs[i].Memory + scenarios.ProcessOverhead
	}
	for i := range g.spec.VGPUs {
		sum += g.spec.VGPUs[i].Memory << 20
	}
	return sum
}

// find returns the process with a PID, whatever the state of its GPU.
func (h *Host) find(pid int) (process, bool) {
	now := h.now()
	for _, g := range h.gpus {
		if p, ok := g.find(pid, now); ok {
			return p, true
		}
	}
	return process{}, false
}

func (g *gpu) find(pid int, now time.Duration) (process, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.advance(now)
	for _, p := range g.procs {
		if p.PID == pid && !p.ghost {
			return p, true
		}
	}
	return process{}, false
}

// workload returns the key of an owner, as in the host's table; empty if the
// cgroup and a name are not enough to tell.
func (g *gpu) workload(o scenarios.Owner) string {
	w := host.ParseCgroup(o.Cgroup, o.UID)
	switch n, named := g.names[w.ContainerID]; {
	case !named:
		return w.Key
	case n.Pod != "":
		return "pod:" + n.Namespace + "/" + n.Pod + "/" + n.Container
	default:
		return "container:" + n.Name
	}
}
