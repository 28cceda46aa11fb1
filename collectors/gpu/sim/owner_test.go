package sim

import (
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// cgroups are the patterns of the cgroups in the scenario mixed, by GPU.
var cgroups = [...]string{
	`^0::/system\.slice/slurmstepd\.scope/job_4711/step_0/user/task_0\n$`,
	`^0::/system\.slice/slurmstepd\.scope/job_4711/step_0/user/task_1\n$`,
	`^0::/system\.slice/slurmstepd\.scope/job_4711/step_0/user/task_2\n$`,
	`^0::/(kubepods.*/cri-containerd-[0-9a-f]{64}\.scope|system\.slice/triton\.service)\n$`,
	`^0::/(kubepods.*/cri-containerd-[0-9a-f]{64}\.scope|system\.slice/triton\.service)\n$`,
	`^0::/user\.slice/user-100[12]\.slice/session-\d\.scope\n$`,
	`^0::/system\.slice/docker-[0-9a-f]{64}\.scope\n$`,
	`^0::/kubepods\.slice/kubepods-burstable\.slice/kubepods-burstable-pod[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}\.slice/cri-containerd-[0-9a-f]{64}\.scope\n$`,
}

// TestOwners checks the owners of the processes in the scenario mixed.
func TestOwners(t *testing.T) {
	h := begin(t, embedded(t, "mixed"), Options{Seed: 3})
	names := h.ContainerNames()
	used := map[string]bool{}
	for i, pattern := range cgroups {
		for _, p := range must[[]nvml.ProcessInfo](t)(gpuOf(t, h, i).GetComputeRunningProcesses()) {
			facts, ok := h.Process(int(p.Pid))
			if !ok || !regexp.MustCompile(pattern).MatchString(facts.Cgroup) {
				t.Errorf("GPU %d: process %d is %+v", i, p.Pid, facts)
			}
			boot := facts.Began.Add(-time.Duration(facts.Start) * 10 * time.Millisecond)
			if up := h.start.Sub(boot); up != uptime || len(facts.Comm) > 15 || facts.Comm == "" {
				t.Errorf("process %d is %+v, %v after boot", p.Pid, facts, up)
			}
			if id := containerID.FindString(facts.Cgroup); id != "" {
				if used[id] || names[id] == (scenarios.ContainerName{}) {
					t.Errorf("container %s is %+v", id, names[id])
				}
				used[id] = true
			}
			if gpus := facts.Environ["SLURM_JOB_GPUS"]; i < 3 && gpus != "0,1,2" {
				t.Errorf("the job has GPUs %q", gpus)
			}
		}
	}
	if _, ok := h.Process(1); ok {
		t.Error("a missing process is known")
	}
	if other := begin(t, embedded(t, "mixed"), Options{Seed: 3}); !maps.Equal(other.ContainerNames(), names) {
		t.Error("equal seeds have different containers")
	}
}

// TestProcessesEnd checks that processes are forgotten at their end, and that
// others begin.
func TestProcessesEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "churn", Count: 2}}}, Options{})
		began := map[int]ProcessFacts{}
		ended := 0
		for range 300 {
			time.Sleep(500 * time.Millisecond)
			for i := range 2 {
				for _, p := range must[[]nvml.ProcessInfo](t)(gpuOf(t, h, i).GetComputeRunningProcesses()) {
					facts, ok := h.Process(int(p.Pid))
					was, known := began[int(p.Pid)]
					if !ok || known && (facts.Start != was.Start || facts.Cgroup != was.Cgroup) {
						t.Fatalf("process %d was %+v, is %+v", p.Pid, was, facts)
					}
					began[int(p.Pid)] = facts
				}
			}
			for pid := range began {
				if _, ok := h.Process(pid); !ok {
					ended++
					delete(began, pid)
				}
			}
		}
		if ended < 30 {
			t.Errorf("%d processes ended", ended)
		}
	})
}

// TestProcessesOfBadGPUs asks for processes while their GPUs do not answer.
func TestProcessesOfBadGPUs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "full", Count: 2}}, Faults: []scenarios.Fault{
			{Kind: "wedge", At: scenarios.Duration(time.Second)}, {Kind: "lost", GPU: 1, At: scenarios.Duration(time.Second)},
		}}, Options{})
		var pids []int
		for i := range 2 {
			pids = append(pids, int(must[[]nvml.ProcessInfo](t)(gpuOf(t, h, i).GetComputeRunningProcesses())[0].Pid))
		}
		stuck := gpuOf(t, h, 0)
		time.Sleep(time.Second)
		go stuck.GetPowerUsage()
		time.Sleep(time.Second)
		start := time.Now()
		for _, pid := range pids {
			if p, ok := h.Process(pid); !ok || p.UID != 1000 || p.Comm != "python3" {
				t.Errorf("process %d is %+v", pid, p)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("asking took %v", d)
		}
		h.Close()
	})
}

// TestWorkloads checks the special workloads of the scenario workloads.
func TestWorkloads(t *testing.T) {
	h := begin(t, embedded(t, "workloads"), Options{})
	for pid, wanted := range map[int]string{
		2101: "docker-", 2102: "libpod-", 2103: "user@1001.service", 2201: "kubepods", 2301: "step_0", 2302: "step_1",
		2401: "triton.service", 2501: "session-5.scope", 2601: "0::/\n", 2701: "user-1002.slice",
		2901: "\x1b[2J\x01\\012", 3001: "nvidia-mps",
	} {
		if p, ok := h.Process(pid); !ok || !strings.Contains(p.Cgroup, wanted) {
			t.Errorf("process %d is %+v, want %q", pid, p, wanted)
		}
	}
	a, _ := h.Process(2201)
	b, _ := h.Process(2202)
	names := h.ContainerNames()
	first, second := names[containerID.FindString(a.Cgroup)], names[containerID.FindString(b.Cgroup)]
	if first.Pod != second.Pod || first.Container == second.Container || len(names) != 4 {
		t.Errorf("the pod's containers are %+v and %+v of %d", first, second, len(names))
	}
	if p, _ := h.Process(2901); len(p.Cgroup) < 200 {
		t.Errorf("the long name has %d bytes", len(p.Cgroup))
	}
	if p, _ := h.Process(2401); p.Comm != "tritonserver" {
		t.Errorf("the name is %q", p.Comm)
	}
}
