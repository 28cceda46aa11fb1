package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// useOf reads the utilization of processes by PID.
func useOf(t *testing.T, d *device, since time.Time) map[uint32]nvml.ProcessUtilizationSample {
	t.Helper()
	all := map[uint32]nvml.ProcessUtilizationSample{}
	samples, ret := d.GetProcessUtilization(uint64(since.UnixMicro()))
	if ret != nvml.SUCCESS {
		want(t, "utilization", ret, nvml.ERROR_NOT_FOUND)
	}
	for _, s := range samples {
		if _, twice := all[s.Pid]; twice {
			t.Errorf("process %d is listed twice", s.Pid)
		}
		all[s.Pid] = s
	}
	return all
}

// TestSharesOfProcesses has one process with three parts, one with seven, one
// idle and one busy with graphics.
func TestSharesOfProcesses(t *testing.T) {
	h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "full", Processes: []scenarios.Process{
		{PID: 1, Share: 0.3}, {PID: 2, Share: 0.7}, {PID: 3, Idle: true}, {PID: 4, Type: "graphics", Share: 0.001},
	}}}}, Options{})
	use := useOf(t, gpuOf(t, h, 0), time.UnixMicro(0))
	if _, ok := use[3]; ok || len(use) != 3 {
		t.Errorf("utilization is %+v", use)
	}
	if a, b := use[1].SmUtil, use[2].SmUtil; a < 27 || a > 29 || b < 64 || b > 67 {
		t.Errorf("processes use %d and %d %%", a, b)
	}
	if s := use[4]; s.SmUtil != 0 || s.TimeStamp == 0 {
		t.Errorf("little use is %+v", s)
	}
}

// TestWindowOfProcesses reads a GPU whose work comes and goes.
func TestWindowOfProcesses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "notebook"}}}, Options{Seed: 1})
		d := gpuOf(t, h, 0)
		var stopped time.Time
		var last map[uint32]nvml.ProcessUtilizationSample
		for range 20_000 {
			time.Sleep(37 * time.Millisecond)
			now := time.Now()
			all := useOf(t, d, time.UnixMicro(0))
			for pid, s := range all {
				at := time.UnixMicro(int64(s.TimeStamp))
				if age := now.Sub(at); age < 0 || age > 12200*time.Millisecond {
					t.Fatalf("the newest sample of %d is %v old", pid, age)
				}
				if _, fresh := useOf(t, d, at)[pid]; fresh {
					t.Fatalf("process %d was active after its work had ended", pid)
				}
				if was, ok := last[pid]; ok && s.TimeStamp < was.TimeStamp {
					t.Fatalf("the newest sample of %d went back", pid)
				}
			}
			if d.gpu.work.busy > 0 {
				stopped = now
			}
			idle := now.Sub(stopped)
			if there := len(all) > 0; idle > 12300*time.Millisecond && there ||
				idle > 0 && idle < 11500*time.Millisecond && !stopped.IsZero() && !there {
				t.Fatalf("%d processes %v after the work ended", len(all), idle)
			}
			if idle == 0 {
				for pid, s := range useOf(t, d, now.Add(-time.Second)) {
					if age := now.Sub(time.UnixMicro(int64(s.TimeStamp))); age > 300*time.Millisecond {
						t.Fatalf("process %d works, and its newest sample is %v old", pid, age)
					}
				}
			}
			last = all
		}
	})
}

// TestAverageOfProcesses checks that the averages of adjacent windows add up to
// that of the whole.
func TestAverageOfProcesses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "inference",
			Processes: []scenarios.Process{{PID: 1}}}}}, Options{Seed: 1})
		d := gpuOf(t, h, 0)
		first := must[[]nvml.ProcessUtilizationSample](t)(d.GetProcessUtilization(0))[0].TimeStamp
		seen, sum := first, 0.0
		for range 4 {
			time.Sleep(2500 * time.Millisecond)
			s := must[[]nvml.ProcessUtilizationSample](t)(d.GetProcessUtilization(seen))[0]
			sum += float64(s.SmUtil) * float64(s.TimeStamp-seen)
			seen = s.TimeStamp
		}
		whole := must[[]nvml.ProcessUtilizationSample](t)(d.GetProcessUtilization(first))[0]
		if mean := sum / float64(seen-first); seen-first < 9_990_000 || seen-first > 10_010_000 ||
			!near(mean, float64(whole.SmUtil), 1) {
			t.Errorf("the parts of %d us have a mean of %v %%, the whole %d %%", seen-first, mean, whole.SmUtil)
		}
	})
}

// TestEndedProcessesHaveNoUsage checks that ended processes are forgotten at once.
func TestEndedProcessesHaveNoUsage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "churn"}}}, Options{})
		d := gpuOf(t, h, 0)
		seen := map[uint32]bool{}
		for range 300 {
			time.Sleep(300 * time.Millisecond)
			there := map[uint32]bool{}
			for _, p := range must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses()) {
				there[p.Pid] = true
			}
			for pid := range useOf(t, d, time.UnixMicro(0)) {
				seen[pid] = true
				if !there[pid] {
					t.Errorf("process %d has ended and is reported", pid)
				}
			}
		}
		if len(seen) < 15 {
			t.Errorf("%d processes were active", len(seen))
		}
	})
}

// TestMPS checks that the server does the work of its clients.
func TestMPS(t *testing.T) {
	h := begin(t, embedded(t, "workloads"), Options{})
	d := gpuOf(t, h, 1)
	compute := must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses())
	clients := must[[]nvml.ProcessInfo](t)(d.GetMPSComputeRunningProcesses())
	if len(compute) != 3 || len(clients) != 2 || compute[1] != clients[0] || compute[2] != clients[1] {
		t.Errorf("processes are %+v, clients %+v", compute, clients)
	}
	if use := useOf(t, d, time.UnixMicro(0)); len(use) != 1 || use[compute[0].Pid].SmUtil == 0 {
		t.Errorf("utilization is %+v", use)
	}
}
