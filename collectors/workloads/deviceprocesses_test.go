package workloads

import (
	"math"
	"slices"
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

// held returns the only device process of a PID, if there is one.
func held(t *testing.T, all []collectors.DeviceProcess, pid int) (collectors.DeviceProcess, bool) {
	t.Helper()
	i := slices.IndexFunc(all, func(x collectors.DeviceProcess) bool { return x.Process.PID == pid })
	if i < 0 {
		return collectors.DeviceProcess{}, false
	}
	if slices.ContainsFunc(all[i+1:], func(x collectors.DeviceProcess) bool { return x.Process.PID == pid }) {
		t.Errorf("process %d is listed twice: %+v", pid, all)
	}
	return all[i], true
}

// deviceProcess is held for the stage's last pass.
func (s *stage) deviceProcess(t *testing.T, pid int) collectors.DeviceProcess {
	t.Helper()
	x, ok := held(t, s.last.Holders, pid)
	fixture.Equal(t, ok, true, "no process %d in %+v", pid, s.last.Holders)
	return x
}

// TestServesWhom checks which workload's work an MPS server of user 1 does.
func TestServesWhom(t *testing.T) {
	t.Parallel()
	in := func(pid, uid int, unit string) host.Process {
		return host.Process{PID: pid, UID: uid, Workload: &host.Workload{Key: unit}}
	}
	server, nameless := in(1, 1, "mps"), host.Process{PID: 5, UID: 1}
	for name, c := range map[string]struct {
		others, clients []host.Process
		want            string
	}{
		"no client":              {nil, nil, "mps"},
		"one workload's":         {nil, []host.Process{in(2, 1, "a"), in(3, 2, "a")}, "a"},
		"two workloads'":         {nil, []host.Process{in(2, 1, "a"), in(3, 1, "b")}, ""},
		"one that has no name":   {nil, []host.Process{in(2, 1, "a"), nameless}, ""},
		"beside another user's":  {[]host.Process{in(4, 2, "c")}, []host.Process{in(2, 1, "a"), in(3, 2, "b")}, "a"},
		"beside one of its user": {[]host.Process{in(4, 1, "c")}, []host.Process{in(2, 1, "a")}, "mps"},
	} {
		got := ""
		if w := collectors.Serves(server, append(c.others, server), c.clients); w != nil {
			got = w.Key
		}
		fixture.Equal(t, got, c.want, "%s: it works for", name)
	}
}

func TestDeviceProcessesAreThoseOfTheGPUs(t *testing.T) {
	hosttest.In(t, "workloads", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		all := h.DeviceProcesses()
		fixture.Equal(t, len(all), 16, "processes")
		for pid, c := range map[int]struct {
			gpu, kind, workload string
			memory              uint64
			known               bool
		}{
			2101: {"0", "compute", "container:trainer", 8000, true}, 2701: {"0", "graphics", "user:1002", 60, true},
			2801: {"0", "compute", "unit:secret.service", 0, false},
			3001: {"1", "server", "unit:nvidia-mps.service", 30, true},
			3002: {"1", "mps", "unit:mps-a.service", 9000, true},
		} {
			x, ok := held(t, all, pid)
			if !ok || x.UUID != hosttest.Told(h, collectors.Up, "gpu", c.gpu)["uuid"] || x.Kind != c.kind ||
				x.Memory != c.memory*mebibyte || x.Known != c.known || x.Unknown {
				t.Errorf("process %d: %+v; want %+v", pid, x, c)
				continue
			}
			fixture.If(t, x.Process.Workload == nil || x.Process.Workload.Key != c.workload || x.Process.Start == 0,
				"process %d is %+v of %v, want of %s", pid, x.Process, x.Process.Workload, c.workload)
			age := time.Since(x.At)
			fixture.If(t, age < 0 || age > time.Second, "the driver was asked about process %d %v ago", pid, age)
		}
		x, _ := held(t, all, 2101)
		fixture.If(t, x.SM <= 0 || x.Busy <= 0 || time.Since(x.Sampled.Round(0)) > useEvery+useLag,
			"the trainer had the GPU for %v s and its memory for %v s, until %v", x.SM, x.Busy, x.Sampled)
		v, _ := hosttest.Get(t, h, WorkloadSM, "0", "container:trainer")
		fixture.If(t, math.Abs(v-x.SM) > 1e-6,
			"the trainer had the GPU for %v s, and its workload, which has no other process, for %v s", x.SM, v)
		fixture.Must(t, h.Drain(t.Context()))
		if all := h.DeviceProcesses(); len(all) != 0 {
			t.Errorf("without a driver there are %d processes", len(all))
		}
	})
}

// TestHoldingsOfASilentGPU checks that the processes of such a GPU are not shown from memory.
func TestHoldingsOfASilentGPU(t *testing.T) {
	source := `gpus:
- {processes: [{pid: 1, memory: 1}]}
- {processes: [{pid: 2, memory: 1}]}
faults:
- {kind: wedge, gpu: 0, at: 10s}
`
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second)
		uuid := hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"]
		_, ok := held(t, h.DeviceProcesses(), 1)
		fixture.Stop(t, !ok, "the process is missing from the start")
		_, _, _, ok = device.MemoryOf(h, uuid)
		fixture.If(t, !ok, "the GPU's memory is unknown from the start")
		hosttest.Advance(20 * time.Second)
		all := h.DeviceProcesses()
		x, ok := held(t, all, 1)
		fixture.If(t, ok, "the GPU hangs, and still has %+v", x)
		_, ok = held(t, all, 2)
		fixture.If(t, !ok, "the other GPU's process is gone")
		total, _, _, ok := device.MemoryOf(h, uuid)
		fixture.If(t, ok, "the GPU hangs, and still has %d bytes", total)
		_, _, listed := h.Holds(uuid, 1)
		fixture.If(t, !listed, "the last known memory was forgotten")
	})
}

func TestUsageIsCountedWhileTheProcessExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{compute: []nvml.ProcessInfo{runs(1, 1), runs(2, 1)}, use: works(40, 1)}
		s := perform(t, b)
		s.is(1, "a.service")
		s.is(2, "b.service")
		s.passes(30)
		one, two := s.deviceProcess(t, 1), s.deviceProcess(t, 2)
		fixture.If(t, math.Abs(one.SM-(.4*30)) > .4*useEvery.Seconds()+.5 || two.SM != 0,
			"at 40 %% for 30 s the busy one had %v s, and the idle one %v s", one.SM, two.SM)
		fixture.If(t, two.Sampled.IsZero() || !two.Sampled.Equal(one.Sampled),
			"counted until %v and %v: an idle process counts too", one.Sampled, two.Sampled)
		// Between the driver's answers nothing changes, and counting continues after a failure.
		b.use = func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_UNKNOWN }
		s.passes(8)
		if x := s.deviceProcess(t, 1); x.SM < one.SM || !x.Sampled.Before(time.Now().Add(-5*time.Second)) {
			t.Errorf("after 8 s without a reading %v s are counted until %v", x.SM, x.Sampled)
		}
		b.use = works(40, 1)
		s.passes(10)
		x := s.deviceProcess(t, 1)
		fixture.If(t, x.SM < one.SM+1, "%v s, and 18 s later %v s", one.SM, x.SM)
		s.is(1, "c.service") // another process has the PID
		s.passes(1)
		if x := s.deviceProcess(t, 1); x.SM > .4*useEvery.Seconds()+.5 || x.Process.Start == one.Process.Start {
			t.Errorf("a process that has just begun had the GPU for %v s", x.SM)
		}
		b.compute = nil
		s.passes(1)
		fixture.Equal(t, len(s.last.Holders), 0, "holders without processes: %+v", s.last.Holders)
	})
}

// TestHoldingOfAnUnknownProcess checks that a process unknown to the kernel has the driver's values.
func TestHoldingOfAnUnknownProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{compute: []nvml.ProcessInfo{runs(1, 7)}}
		b.use = func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		s := perform(t, b)
		s.passes(3)
		x := s.deviceProcess(t, 1)
		if !x.Unknown || x.Memory != 7 || !x.Known || x.UUID != "GPU-a" || x.SM != 0 || !x.Sampled.IsZero() {
			t.Errorf("%+v", x)
		}
	})
}

// TestHoldingInSeveralInstances checks that several unknown MIG instances make one process on the GPU.
func TestHoldingInSeveralInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(pid, gi uint32, memory uint64) nvml.ProcessInfo {
			return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: memory, GpuInstanceId: gi}
		}
		b := &board{compute: []nvml.ProcessInfo{in(1, 1, 10), in(2, 1, 3), in(1, 2, 20), in(2, 2, unknownMemory)},
			use: works(50, 1)}
		s := perform(t, b)
		s.is(1, "a.service")
		s.is(2, "b.service")
		s.passes(1)
		if x := s.deviceProcess(t, 1); x.Memory != 30 || !x.Known || x.SM > .5 || x.SM == 0 {
			t.Errorf("%+v, want 30 bytes, and half a second counted once", x)
		}
		x := s.deviceProcess(t, 2)
		fixture.If(t, x.Known, "part of its memory is unknown, and yet it is reported as %d", x.Memory)
	})
}
