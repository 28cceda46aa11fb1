package scenarios

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Process is a process on a simulated GPU.
type Process struct {
	PID  int    `yaml:"pid"`
	Name string `yaml:"name"` // an executable or its path
	// compute (default), graphics, mps (a client) or mps_server, which does the
	// clients' work
	Type   string  `yaml:"type"`
	Memory uint64  `yaml:"memory"` // MiB
	Share  float64 `yaml:"share"`  // weight of its part of the GPU's work, 1 if 0
	Idle   bool    `yaml:"idle"`   // it has no part of the work

	MemoryUnknown bool `yaml:"memory_unknown"` // the driver does not report its memory

	Owner `yaml:",inline"`
}

// Owner tells to whom a process belongs. In its texts {id} stands for a
// container's identifier, {pod} for a pod's, {n} for the position in the list,
// {gpu} for the index of the GPU, {gpus} for those of all GPUs with its load and
// job, and {job} and {user} for that job.
type Owner struct {
	UID int `yaml:"uid"`
	// content of /proc/PID/cgroup, or a path of cgroup v2; / by default
	Cgroup    string            `yaml:"cgroup"`
	Env       map[string]string `yaml:"env"`       // a part of its environment
	Container ContainerName     `yaml:"container"` // name of the container of Cgroup
}

// ContainerName is the name of a container in a container runtime or the
// kubelet. Containers of pods have no Name; others have no Namespace, Pod and
// Container.
type ContainerName struct {
	Name      string `yaml:"name"`
	Image     string `yaml:"image"`
	Namespace string `yaml:"namespace"`
	Pod       string `yaml:"pod"`
	Container string `yaml:"container"`
}

// modes lists the types of processes.
var modes = map[string]nvml.ProcessMode{
	"": nvml.PROCESS_MODE_COMPUTE, "compute": nvml.PROCESS_MODE_COMPUTE, "graphics": nvml.PROCESS_MODE_GRAPHICS,
	"mps": nvml.PROCESS_MODE_MPS, MPSServer: nvml.PROCESS_MODE_COMPUTE,
}

// MPSServer is the type of the process that does the work of MPS clients.
const MPSServer = "mps_server"

// Mode returns the process's kind of context.
func (p *Process) Mode() nvml.ProcessMode { return modes[p.Type] }

// ProcessOverhead is the memory of a process beyond NVML's figure, in bytes.
const ProcessOverhead = 9240576

// CrowdMemory is the memory of each process of a crowd, in MiB.
const CrowdMemory = 64

// checkProcesses checks everything except the fit.
func (g *GPU) checkProcesses() error {
	types := map[string]int{}
	for i, p := range g.Processes {
		key := fmt.Sprintf("processes[%d]", i)
		types[p.Type]++
		_, known := modes[p.Type]
		switch {
		case p.PID <= 0:
			return fmt.Errorf("%s.pid: %d: want a positive number", key, p.PID)
		case p.UID < 0:
			return fmt.Errorf("%s.uid: %d: want 0 or more", key, p.UID)
		case !known:
			return fmt.Errorf("%s.type: %q: want one of compute, graphics, mps, mps_server", key, p.Type)
		case p.Share < 0 || p.Share > 0 && p.Idle:
			return fmt.Errorf("%s.share: %v: want 0 or more, and none of an idle process", key, p.Share)
		}
	}
	if types["mps"] > 0 && types[MPSServer] != 1 {
		return fmt.Errorf("processes: clients of mps want one mps_server")
	}
	if len(g.MIG) > 0 && len(g.Processes)+len(g.VGPUs) > 0 {
		return fmt.Errorf("mig: not with processes or vgpus")
	}
	return nil
}
