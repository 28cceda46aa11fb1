package workloads

import (
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestAllocatedGPUs has a Slurm job with two GPUs that uses one of them in a step, a pod that holds memory and does
// nothing, a pod with a MIG device, and a pod whose GPU this host does not have.
func TestAllocatedGPUs(t *testing.T) {
	source := `gpus:
- {load: training}
- {load: idle}
- load: full
  processes:
  - pid: 1
    memory: 100
    idle: true
    cgroup: /kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{id}.scope
    container: {namespace: n, pod: p, container: c}
- {load: inference, mig: [1g.10gb, 2g.20gb]}
- {load: idle}
`
	var given atomic.Pointer[[]host.Allocation]
	given.Store(&[]host.Allocation{})
	hosttest.With(t, source, func(o *collectors.Options) {
		o.Allocations = func() host.Allocated { return host.Allocated{All: *given.Load()} }
	}, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(15 * time.Second)
		fixture.Equal(t, len(hosttest.Of(h, AllocationInfo, "0", "workload")), 0, "allocations before the first one")
		given.Store(&[]host.Allocation{
			{Job: "4711", Devices: []string{"0", "1"}},
			{Namespace: "n", Pod: "p", Container: "c", Devices: []string{hosttest.Told(h, collectors.Up, "gpu", "2")["uuid"]}},
			{Namespace: "n", Pod: "sliced", Container: "c",
				Devices: []string{hosttest.Told(h, device.MIGInfo, "gpu", "3")["mig_uuid"]}},
			{Namespace: "n", Pod: "gke", Container: "c",
				Devices: []string{"nvidia3/gi" + hosttest.Told(h, device.MIGInfo, "gpu", "3")["gi"], "nvidia3/gi99"}},
			{Namespace: "n", Pod: "share", Container: "c",
				Devices: []string{"nvidia3/gi" + hosttest.Told(h, device.MIGInfo, "gpu", "3")["gi"] + "/vgpu1"}},
			{Namespace: "n", Pod: "moved", Container: "c", Devices: []string{"GPU-none", "7"}},
		})
		hosttest.Want(t, h, 1, WorkloadProcesses, "0", "slurm:4711.0", "compute")
		hosttest.Advance(5 * time.Second)
		hosttest.Want(t, h, 1, AllocationInfo, "0", "slurm:4711", "slurm")
		hosttest.Want(t, h, 1, AllocationInfo, "1", "slurm:4711", "slurm")
		hosttest.Want(t, h, 1, AllocationInfo, "2", "pod:n/p/c", "kubelet")
		hosttest.Want(t, h, 1, AllocationInfo, "3", "pod:n/sliced/c", "kubelet")
		hosttest.Want(t, h, 1, AllocationInfo, "3", "pod:n/gke/c", "kubelet")
		for i, n := range []int{1, 1, 1, 3, 0} {
			fixture.Equal(t, len(hosttest.Of(h, AllocationInfo, strconv.Itoa(i), "workload")), n,
				"gpu %d is allocated to", i)
		}
		idle := func(index, workload string) float64 {
			v, ok := hosttest.Get(t, h, AllocatedIdle, index, workload)
			fixture.Need(t, ok, true, "no idle time of %s on gpu %s", workload, index)
			return v
		}
		before := [4]float64{idle("0", "slurm:4711"), idle("1", "slurm:4711"), idle("2", "pod:n/p/c"),
			idle("3", "pod:n/sliced/c")}
		hosttest.Advance(time.Minute)
		for i, rose := range [4]float64{
			idle("0", "slurm:4711") - before[0], idle("1", "slurm:4711") - before[1],
			idle("2", "pod:n/p/c") - before[2], idle("3", "pod:n/sliced/c") - before[3],
		} {
			fixture.Near(t, rose, [4]float64{0, 60, 60, 60}[i], 1e-6,
				"on gpu %d allocated and idle for … s of a minute", i)
		}
		given.Store(&[]host.Allocation{})
		hosttest.Advance(2 * time.Second)
		hosttest.WantNone(t, h, AllocationInfo, "1", "slurm:4711", "slurm")
		hosttest.WantNone(t, h, AllocatedIdle, "1", "slurm:4711")
	})
}

// TestAllocatedIdleTime follows one job through work and rest.
func TestAllocatedIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{}
		s := perform(t, b)
		s.allocated = []host.Allocation{{Job: "4711", Devices: []string{"GPU-a"}}}
		s.pass()
		s.has(t, AllocatedIdle, 0, "slurm:4711") // time before the agent's start does not count
		step := func(what string, seconds int, idle, tolerance float64) {
			t.Helper()
			before := s.value(AllocatedIdle, "slurm:4711")
			s.passes(seconds)
			if rose := s.value(AllocatedIdle, "slurm:4711") - before; !(math.Abs(rose-idle) <= tolerance) {
				t.Errorf("%s: idle for %v s of %d, want %v", what, rose, seconds, idle)
			}
		}
		const lag = 5.2 // the driver is asked every 5 s, and its samples are 0.2 s old
		step("without a process", 30*60, 30*60, 1e-6)
		s.facts[1] = host.Facts{Start: 1, Cgroup: "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"}
		b.compute = []nvml.ProcessInfo{runs(1, 1)}
		step("with a process that does nothing", 60, 60, lag)
		b.use = works(30, 1)
		step("while a step works", 60, 0, lag)
		s.is(2, "other.service")
		b.compute, b.use = append(b.compute, runs(2, 1)), works(30, 2)
		step("while another works", 60, 60, lag)
		b.use = func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
		step("until that is not known", 10, 0, lag)
		step("while the worker is unknown", 60, 0, 1e-9)
		b.compute, b.use = nil, nil
		step("when all have gone", 30, 30, 1e-9)
	})
}

// TestAllocatedByName has allocations that name GPUs by minor number: claims of
// NVIDIA's DRA driver, and GKE's device plugin.
func TestAllocatedByName(t *testing.T) {
	claim := func(driver, device string) host.Allocation {
		return host.Allocation{Namespace: "n", Pod: "p", Container: "c", Claims: []host.Claim{
			{Namespace: "n", Name: "want", Driver: driver, Pool: "node-1", Device: device}}}
	}
	plugin := func(device string) host.Allocation {
		return host.Allocation{Namespace: "n", Pod: "p", Container: "c", Devices: []string{device}}
	}
	synctest.Test(t, func(t *testing.T) {
		s := perform(t, &board{}) // its minor number is 0
		for _, c := range []struct {
			allocation     host.Allocation
			given, claimed bool
		}{
			{claim("gpu.nvidia.com", "gpu-0"), true, true},
			{claim("gpu.nvidia.com", "gpu-0-mig-19-0-1"), true, true},
			{claim("gpu.nvidia.com", "gpu-01"), false, false},
			{claim("gpu.nvidia.com", "gpu-1"), false, false},
			{claim("gpu.nvidia.com", "gpu-vfio-0"), false, false},
			{claim("compute-domain.nvidia.com", "gpu-0"), false, false},
			{plugin("nvidia0"), true, false},
			{plugin("nvidia0/vgpu1"), true, false}, // a share of its time
			{plugin("nvidia0/gi1"), false, false},  // it has no instance
			{plugin("nvidia01"), false, false},
			{plugin("0"), false, false}, // an index is Slurm's
		} {
			s.allocated = []host.Allocation{c.allocation}
			s.pass()
			given := !math.IsNaN(s.value(AllocationInfo, "pod:n/p/c", "kubelet"))
			claimed := len(c.allocation.Claims) > 0 && !math.IsNaN(s.value(AllocationClaimInfo, "pod:n/p/c", "n", "want",
				"gpu.nvidia.com", "node-1", c.allocation.Claims[0].Device))
			fixture.Equal(t, fmt.Sprint(given, claimed), fmt.Sprint(c.given, c.claimed), "%+v: given and claimed are", c.allocation)
		}
	})
}

func TestAllocationsKnown(t *testing.T) {
	var now atomic.Pointer[host.Allocated]
	now.Store(&host.Allocated{})
	hosttest.With(t, "gpus: [{load: idle}]\n", func(o *collectors.Options) {
		o.Allocations = func() host.Allocated { return *now.Load() }
	}, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(2 * time.Second)
		hosttest.WantNone(t, h, AllocationsKnown, "", "kubelet")
		for known, want := range map[bool]float64{true: 1, false: 0} {
			now.Store(&host.Allocated{Known: map[string]bool{"kubelet": known}})
			hosttest.Advance(2 * time.Second)
			hosttest.Want(t, h, want, AllocationsKnown, "", "kubelet")
		}
	})
}
