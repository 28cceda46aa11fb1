package sim

import (
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
)

// The owners of the loads' processes: a server and small workloads in pods, a
// batch job in a container, a Slurm job, units, and users.
var (
	server = pod("serving", "llama-{gpu}", "vllm", "docker.io/vllm/vllm-openai:v0.11.0")
	small  = pod("serving", "small-{gpu}-{n}", "model", "nvcr.io/nvidia/tritonserver:25.09-py3")
	worker = pod("crowd", "worker-{n}", "worker", "registry.example/worker:1.4")
	batch  = scenarios.Owner{Cgroup: "/system.slice/docker-{id}.scope",
		Container: scenarios.ContainerName{Name: "batch-{gpu}-{n}", Image: "pytorch/pytorch:2.8.0-cuda12.9"}}

	job = scenarios.Owner{UID: 1003, Cgroup: "/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_{gpu}",
		Env: map[string]string{
			"SLURM_JOB_USER": "{user}", "SLURM_JOB_ACCOUNT": "nlp", "SLURM_JOB_PARTITION": "train",
			"SLURM_JOB_GPUS": "{gpus}",
		}}

	triton  = scenarios.Owner{UID: 997, Cgroup: "/system.slice/triton.service"}
	service = scenarios.Owner{UID: 1000, Cgroup: "/system.slice/train.service"}

	alice = scenarios.Owner{UID: 1001, Cgroup: "/user.slice/user-1001.slice/session-5.scope"}
	bob   = scenarios.Owner{UID: 1002, Cgroup: "/user.slice/user-1002.slice/session-9.scope"}
)

func pod(namespace, name, container, image string) scenarios.Owner {
	return scenarios.Owner{
		Cgroup:    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{id}.scope",
		Container: scenarios.ContainerName{Image: image, Namespace: namespace, Pod: name, Container: container},
	}
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// fill substitutes an owner's placeholders and records its container's name.
func (g *gpu) fill(o scenarios.Owner, n int) scenarios.Owner {
	salt := uint64(4 * n)
	id := fmt.Sprintf("%016x%016x%016x%016x", noise.Hash(g.seed, salt+5000), noise.Hash(g.seed, salt+5001),
		noise.Hash(g.seed, salt+5002), noise.Hash(g.seed, salt+5003))
	in := strings.NewReplacer("{gpu}", strconv.Itoa(g.index), "{gpus}", g.sharing(),
		"{n}", strconv.Itoa(n), "{job}", strconv.Itoa(g.spec.Job.ID), "{user}", g.spec.Job.User,
		"{id}", id, "{pod}", strings.ReplaceAll(g.uuid("", uint64(n)+300)[1:], "-", "_")).Replace
	if o.Cgroup == "" {
		o.Cgroup = "/"
	}
	if strings.HasPrefix(o.Cgroup, "/") {
		o.Cgroup = "0::" + o.Cgroup + "\n"
	}
	o.Cgroup, o.Env = in(o.Cgroup), maps.Clone(o.Env)
	for key, value := range o.Env {
		o.Env[key] = in(value)
	}
	c := &o.Container
	*c = scenarios.ContainerName{Name: in(c.Name), Image: in(c.Image), Namespace: in(c.Namespace), Pod: in(c.Pod),
		Container: in(c.Container)}
	if id := containerID.FindString(o.Cgroup); id != "" && *c != (scenarios.ContainerName{}) {
		g.names[id] = *c
	}
	return o
}

// sharing lists the indices of the GPUs that have g's load and job.
func (g *gpu) sharing() string {
	var all []string
	for i, other := range g.host.scenario.GPUs {
		if other.Load == g.spec.Load && other.Job == g.spec.Job {
			all = append(all, strconv.Itoa(i))
		}
	}
	return strings.Join(all, ",")
}

// ContainerNames returns the names of the host's containers by their
// identifiers of 64 digits.
func (h *Host) ContainerNames() map[string]scenarios.ContainerName {
	all := map[string]scenarios.ContainerName{}
	for _, g := range h.gpus {
		maps.Copy(all, g.names)
	}
	return all
}

// ProcessFacts are the contents of a process's directory in /proc.
type ProcessFacts struct {
	Start   uint64    // clock ticks, of 10 ms, from boot to its start
	Began   time.Time // the same as a time
	UID     int
	Comm    string            // its name, cut to 15 bytes
	Cgroup  string            // the content of /proc/PID/cgroup
	Environ map[string]string // a part of its environment
}

// uptime is the uptime of the machine when the scenario begins.
const uptime = 20 * 24 * time.Hour

// Process returns the facts of a process on a GPU; false if there is none, or
// it has ended. It does not wait for a wedged GPU, and the processes of a lost
// GPU still exist. It needs no session.
func (h *Host) Process(pid int) (p ProcessFacts, ok bool) {
	found, ok := h.find(pid)
	if !ok {
		return p, false
	}
	began, o := time.Duration(found.from)*step, found.owner
	return ProcessFacts{
		Start: uint64((uptime + began) / (10 * time.Millisecond)), Began: h.start.Add(began),
		UID: o.UID, Comm: found.comm(), Cgroup: o.Cgroup, Environ: maps.Clone(o.Env),
	}, true
}

// Table returns a table of h's processes and the names of their containers.
func (h *Host) Table(log *slog.Logger) *host.Table {
	proc := func(pid int) (host.Facts, map[string]string, bool) {
		p, ok := h.Process(pid)
		if !ok && pid == 2 {
			return host.Facts{Comm: "kthreadd"}, nil, true
		}
		return host.Facts{Start: p.Start, Began: p.Began, UID: p.UID, Comm: p.Comm, Cgroup: p.Cgroup}, p.Environ, ok
	}
	names := host.NamesMap{}
	for id, n := range h.ContainerNames() {
		names[id] = host.ContainerName{Name: n.Name, Image: n.Image, Namespace: n.Namespace, Pod: n.Pod,
			Container: n.Container}
	}
	return host.NewTable(host.Options{Proc: host.ProcFunc(proc), Names: []host.Names{names}, Log: log})
}
