package sim

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// owner is the owner of a process, as in Process.
type owner struct {
	uid       int
	cgroup    string
	env       map[string]string
	container scenarios.ContainerName
}

// The owners of the loads' processes: a server and small workloads in pods, a
// batch job in a container, a Slurm job, units, and users.
var (
	server = pod("serving", "llama-{gpu}", "vllm", "docker.io/vllm/vllm-openai:v0.11.0")
	small  = pod("serving", "small-{gpu}-{n}", "model", "nvcr.io/nvidia/tritonserver:25.09-py3")
	worker = pod("crowd", "worker-{n}", "worker", "registry.example/worker:1.4")
	batch  = owner{cgroup: "/system.slice/docker-{id}.scope",
		container: scenarios.ContainerName{Name: "batch-{gpu}-{n}", Image: "pytorch/pytorch:2.8.0-cuda12.9"}}

	job = owner{uid: 1003, cgroup: "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_{gpu}",
		env: map[string]string{
			"SLURM_JOB_USER": "carol", "SLURM_JOB_ACCOUNT": "nlp", "SLURM_JOB_PARTITION": "train",
			"SLURM_JOB_GPUS": "{gpus}",
		}}

	triton  = owner{uid: 997, cgroup: "/system.slice/triton.service"}
	service = owner{uid: 1000, cgroup: "/system.slice/train.service"}

	alice = owner{uid: 1001, cgroup: "/user.slice/user-1001.slice/session-5.scope"}
	bob   = owner{uid: 1002, cgroup: "/user.slice/user-1002.slice/session-9.scope"}
)

func pod(namespace, name, container, image string) owner {
	return owner{
		cgroup:    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{id}.scope",
		container: scenarios.ContainerName{Image: image, Namespace: namespace, Pod: name, Container: container},
	}
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// fill substitutes an owner's placeholders and records its container's name.
func (g *gpu) fill(o owner, n int) owner {
	salt := uint64(4 * n)
	id := fmt.Sprintf("%016x%016x%016x%016x", noise.Hash(g.seed, salt+5000), noise.Hash(g.seed, salt+5001), noise.Hash(g.seed, salt+5002),
		noise.Hash(g.seed, salt+5003))
	in := strings.NewReplacer("{gpu}", strconv.Itoa(g.index), "{gpus}", g.host.sharing(g.spec.Load),
		"{n}", strconv.Itoa(n),
		"{id}", id, "{pod}", strings.ReplaceAll(g.uuid("", uint64(n)+300)[1:], "-", "_")).Replace
	if o.cgroup == "" {
		o.cgroup = "/"
	}
	if strings.HasPrefix(o.cgroup, "/") {
		o.cgroup = "0::" + o.cgroup + "\n"
	}
	o.cgroup, o.env = in(o.cgroup), maps.Clone(o.env)
	for key, value := range o.env {
		o.env[key] = in(value)
	}
	c := &o.container
	*c = scenarios.ContainerName{Name: in(c.Name), Image: in(c.Image), Namespace: in(c.Namespace), Pod: in(c.Pod),
		Container: in(c.Container)}
	if id := containerID.FindString(o.cgroup); id != "" && *c != (scenarios.ContainerName{}) {
		g.names[id] = *c
	}
	return o
}

// sharing lists the indices of the GPUs that have a load.
func (h *Host) sharing(load string) string {
	var all []string
	for i, g := range h.scenario.GPUs {
		if g.Load == load {
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
		UID: o.uid, Comm: found.comm(), Cgroup: o.cgroup, Environ: maps.Clone(o.env),
	}, true
}
