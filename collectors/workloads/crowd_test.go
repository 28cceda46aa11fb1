package workloads

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestCountersOfAReturningWorkloadContinue has five containers that run a process occasionally.
func TestCountersOfAReturningWorkloadContinue(t *testing.T) {
	t.Parallel()
	hosttest.In(t, "gpus: [{load: churn}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second) // until their names are known
		d, returned := hosttest.Simulated(t, h, 0), 0
		counted, left := map[string]float64{}, map[string]bool{}
		for range 600 {
			hosttest.Advance(time.Second)
			running := map[string]float64{}
			infos, _ := d.GetComputeRunningProcesses()
			for _, p := range infos {
				process, err := h.Processes.Lookup(int(p.Pid))
				if err == nil && process.Workload != nil {
					running[process.Workload.Key]++
				}
			}
			shown := hosttest.Of(h, WorkloadProcesses, "0", "workload")
			fixture.Stop(t, !maps.Equal(shown, running), "shown are %v, there are %v", shown, running)
			now := hosttest.Of(h, WorkloadSM, "0", "workload")
			for name := range counted {
				left[name] = left[name] || now[name] == 0
			}
			for name, v := range now {
				fixture.AtLeast(t, v, counted[name], "%s", name)
				if left[name] && v > 0 {
					returned, left[name] = returned+1, false
				}
				counted[name] = v
			}
		}
		fixture.AtLeast(t, returned, 10, "workloads returned only … times, too few for this test")
	})
}

func TestCountersExpireTenMinutesAfterTheWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{}
		s := perform(t, b)
		const name = "unit:a.service"
		work := func(seconds int) {
			s.is(1, "a.service")
			b.compute, b.use = []nvml.ProcessInfo{runs(1, 1)}, works(100, 1)
			s.passes(seconds)
		}
		rest := func(seconds int) {
			b.compute, b.use = nil, nil
			delete(s.facts, 1)
			s.passes(seconds)
		}
		work(10)
		first := s.value(WorkloadSM, name)
		rest(1)
		s.has(t, WorkloadSM, math.NaN(), name)
		s.has(t, WorkloadProcesses, math.NaN(), name, "compute")
		rest(9 * 60)
		work(10)
		fixture.Near(t, s.value(WorkloadSM, name), 2*first, 1.5, "… s after its return")
		b.use = nil
		s.passes(15 * 60)
		fixture.Near(t, s.value(WorkloadSM, name), 2*first, 1.5, "… s after a long idle time")
		rest(11 * 60)
		fixture.Equal(t, len(s.totals), 0, "kept after eleven minutes: %v", s.totals)
		work(10)
		fixture.Near(t, s.value(WorkloadSM, name), first, 1.5, "… s after a restart")
	})
}

// TestKeptWorkloadsAreBounded has new workloads for an hour: a few at a time, and then a great many at once.
func TestKeptWorkloadsAreBounded(t *testing.T) {
	t.Parallel()
	kept := func(s *stage) (n int) {
		for key := range s.totals {
			if strings.HasPrefix(key, WorkloadSM.Name) {
				n++
			}
		}
		return n
	}
	synctest.Test(t, func(t *testing.T) {
		b := &board{}
		s := perform(t, b)
		born := 0
		turn := func(births int) {
			b.compute, b.use = nil, nil
			clear(s.facts)
			var pids []int
			for range births {
				born++
				s.is(born, fmt.Sprintf("job-%d.service", born))
				b.compute = append(b.compute, runs(born, 1))
				pids = append(pids, born)
			}
			if births > 0 {
				b.use = works(1, pids...)
			}
			time.Sleep(10 * time.Second)
			s.pass()
		}
		for range 360 {
			turn(1)
			if n := kept(s); n > 67 { // those of eleven minutes
				t.Fatalf("the counters of %d workloads are kept after %d", n, born)
			}
		}
		most := 0
		for range 60 {
			turn(100)
			most = max(most, kept(s))
		}
		fixture.If(t, most > maxKept+100 || most < maxKept/2,
			"the counters of %d workloads are kept, want about %d", most, maxKept)
		for range 70 {
			turn(0)
		}
		fixture.Equal(t, len(s.totals), 0, "… counters are kept after all workloads left")
	})
}

// TestCrowdIsBounded has 512 processes of 64 pods.
func TestCrowdIsBounded(t *testing.T) {
	t.Parallel()
	hosttest.In(t, "crowd", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second)
		fixture.Equal(t, len(hosttest.Of(h, ProcessInfo, "0", "pid")), 0, "series of processes without per_process")
		hosttest.Want(t, h, 512, Processes, "0", "compute")
		memory := hosttest.Of(h, WorkloadMemory, "0", "workload")
		fixture.If(t, len(memory) != 64 ||
			memory["pod:crowd/worker-7/worker"] != 8*64*mebibyte, "memory by workload: %v", memory)
		c := collectors.DefaultConfig()
		c.PerProcess = true
		h.Configure(c)
		hosttest.Advance(2 * time.Second)
		before, _ := hosttest.Get(t, h, collectors.SeriesDropped, "", ProcessInfo.Name)
		hosttest.Advance(10 * time.Second)
		if after, _ := hosttest.Get(t, h, collectors.SeriesDropped, "", ProcessInfo.Name); after-before != 10*448 {
			t.Errorf("%v processes were left out in 10 s, want 448 each second", after-before)
		}
		for _, m := range []*collectors.Metric{ProcessInfo, ProcessMemory, ProcessUse} {
			fixture.Equal(t, len(hosttest.Of(h, m, "0", "pid")), maxHolders, "%v of … processes", m)
		}
		got := hosttest.Of(h, collectors.SeriesDropped, "", "family")
		fixture.If(t, len(got) != 1, "left out were %v, want processes only", got)
		info := hosttest.Told(h, ProcessInfo, "pid", "200007")
		fixture.If(t, fmt.Sprint(info) != fmt.Sprint(map[string]string{"ci": "", "comm": "python3", "gi": "", "gpu": "0",
			"pid": "200007", "type": "compute",
			"user": "root", "uuid": info["uuid"], "workload": "pod:crowd/worker-7/worker"}),
			"a process is %v", info)
		oldest := time.Now()
		for pid := 200_007; pid < 200_512; pid += 64 {
			if p, _ := h.NVML.(*sim.Host).Process(pid); p.Began.Before(oldest) {
				oldest = p.Began
			}
		}
		hosttest.Want(t, h, float64(oldest.UnixMilli())/1e3, WorkloadStart, "", "pod:crowd/worker-7/worker")
	})
}

func TestLargestWorkloadsAreShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &board{}
		var pids []int
		s := perform(t, b)
		s.config.PerProcess = true
		for i := range 100 {
			pid, memory := i+1, uint64(i*37%100+1)
			if i == 50 {
				memory = unknownMemory
			}
			s.is(pid, fmt.Sprintf("w%d.service", memory))
			b.compute = append(b.compute, runs(pid, memory))
			pids = append(pids, pid)
		}
		b.use = works(1, pids...)
		s.passes(100)
		workloads, processes := map[string]bool{}, 0
		for _, p := range s.last.Samples {
			switch p.Metric {
			case WorkloadMemory:
				workloads[p.Labels[2]] = true
				fixture.Equal(t, p.Value < 36, false, "%s is shown with %v", p.Labels[2], p.Value)
			case ProcessMemory:
				processes++
				fixture.Equal(t, p.Value < 36, false, "process %s is shown with %v", p.Labels[2], p.Value)
			}
		}
		fixture.Equal(t, fmt.Sprint(len(workloads), processes), fmt.Sprint(maxHolders, maxHolders), "shown are")
		n := s.last.Dropped
		fixture.If(t, n[WorkloadProcesses] != 100-maxHolders || n[ProcessInfo] != 100-maxHolders ||
			len(n) != 2, "left out: %v", n)
		// Hidden workloads are counted all the same.
		small := s.totals[WorkloadSM.Name+"\x00unit:w1.service"]
		fixture.Equal(t, small < .9 || small > 1.01, false, "the hidden workload had the SMs for %v s, want 1", small)
	})
}

// TestInstancesOfMIG checks that instances have their own memory, and no use, which the driver does not report.
func TestInstancesOfMIG(t *testing.T) {
	c := collectors.DefaultConfig()
	c.PerProcess = true
	hosttest.In(t, "mig", c, func(t *testing.T, h *collectors.Host) {
		for range 30 {
			hosttest.Advance(time.Second)
			for _, m := range []*collectors.Metric{WorkloadSM, WorkloadUse, WorkloadEnergy, ProcessUse} {
				fixture.Need(t, len(hosttest.Of(h, m, "0", "uuid")), 0, "%v under MIG", m)
			}
			hosttest.Want(t, h, 1, collectors.Unsupported, "0", WorkloadSM.Name)
			hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "processes")
		}
		infos, _ := hosttest.Simulated(t, h, 0).GetComputeRunningProcesses()
		fixture.Need(t, len(infos), 4, "processes are %v", infos)
		seen := map[string]bool{}
		for _, p := range infos {
			process := hosttest.Told(h, ProcessInfo, "pid", strconv.Itoa(int(p.Pid)))
			fixture.If(t, process["gi"] != strconv.Itoa(int(p.GpuInstanceId)) || process["ci"] != "0",
				"process %d is %v", p.Pid, process)
			seen[process["gi"]] = true
			hosttest.Want(t, h, float64(p.UsedGpuMemory), WorkloadMemory, "0", process["workload"], process["gi"])
			hosttest.Want(t, h, float64(p.UsedGpuMemory), ProcessMemory, "0", process["pid"])
		}
		fixture.Equal(t, len(seen), 4, "instances: %v", seen)
		hosttest.Want(t, h, 4, Processes, "0", "compute")
	})
}

// aCrowd returns a read of the processes collector with 512 processes. The
// kernel's part is a map; the rest runs as on a host.
func aCrowd(t testing.TB) func() *collectors.Readings {
	t.Helper()
	nv := fixture.Value(sim.New(hosttest.Scenario(t, "crowd"), sim.Options{Seed: 1}))(t)
	t.Cleanup(nv.Close)
	lib := fixture.Value(gpu.Open(nv, new(gpu.Calls), new(gpu.Caller)))(t)
	g := fixture.Value(lib.Device(0))(t)
	infos, _ := g.GetComputeRunningProcesses()
	facts := map[int]host.Facts{}
	for _, p := range infos {
		f, _ := nv.Process(int(p.Pid))
		facts[int(p.Pid)] = host.Facts{Start: f.Start, Began: f.Began, UID: f.UID, Comm: f.Comm, Cgroup: f.Cgroup}
	}
	fixture.Need(t, len(facts), 512, "processes")
	s := &stage{gpu: g, config: collectors.DefaultConfig(), totals: map[string]float64{}}
	s.config.PerProcess = true
	s.table = host.NewTable(host.Options{Proc: host.ProcFunc(func(pid int) (host.Facts, map[string]string, bool) {
		f, ok := facts[pid]
		return f, nil, ok
	})})
	s.read = openUsers(g)
	return s.pass
}

// spentCPU returns the processor time of this process so far.
func spentCPU(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	fixture.Must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
