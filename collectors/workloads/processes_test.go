package workloads

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

func total(values map[string]float64) (sum float64) {
	for _, v := range values {
		sum += v
	}
	return sum
}

const mebibyte = 1 << 20

// TestProcessesUnknownToTheKernelAreShown lets the driver list a process that has ended. In a PID namespace of its own,
// the agent knows none of the processes, and PID 2 is not a kernel thread.
func TestProcessesUnknownToTheKernelAreShown(t *testing.T) {
	const ghost = "faults: [{kind: ghost, count: 40000, at: 1s, for: 20s}]\n"
	hosttest.In(t, "gpus: [{load: full}]\n"+ghost, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second)
		hosttest.Want(t, h, 40000*mebibyte, UnknownMemory, "0", "400000")
		hosttest.WantNone(t, h, WorkloadStart, "", "user:0") // of the kernel's thread
		hosttest.Advance(20 * time.Second)
		hosttest.WantNone(t, h, UnknownMemory, "0", "400000")
	})
	hosttest.In(t, "gpus: [{load: full, processes: [{pid: 2, memory: 100}]}]\n"+
		ghost, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second)
		hosttest.WantNone(t, h, UnknownMemory, "0", "400000")
	})
}

func TestWorkloadsHaveTheMemoryOfTheirProcesses(t *testing.T) {
	source := `gpus:
- load: full
  processes:
  - {pid: 1, memory: 100, cgroup: /system.slice/a.service}
  - {pid: 2, memory: 23, cgroup: /system.slice/a.service, type: graphics}
  - {pid: 3, name: nvidia-cuda-mps-server, memory: 7, cgroup: /system.slice/mps.service, type: mps_server}
  - {pid: 4, memory: 1000, cgroup: /system.slice/a.service, type: mps}
  - {pid: 5, memory: 5, cgroup: /system.slice/b.service}
  - {pid: 6, memory: 5, cgroup: /system.slice/b.service, memory_unknown: true}
- {load: idle}
`
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(3 * time.Second)
		for kind, n := range map[string]float64{"compute": 4, "graphics": 1, "mps": 1} {
			hosttest.Want(t, h, n, Processes, "0", kind)
			hosttest.Want(t, h, 0, Processes, "1", kind)
		}
		hosttest.Want(t, h, 1130*mebibyte, WorkloadMemory, "0", "unit:a.service", "") // with the server of its client
		hosttest.WantNone(t, h, WorkloadMemory, "0", "unit:mps.service", "")
		for kind, n := range map[string]float64{"compute": 2, "graphics": 1, "mps": 1} {
			hosttest.Want(t, h, n, WorkloadProcesses, "0", "unit:a.service", kind)
		}
		hosttest.Want(t, h, 2, WorkloadProcesses, "0", "unit:b.service", "compute")
		hosttest.WantNone(t, h, WorkloadMemory, "0", "unit:b.service", "") // because part of it is unknown
		fixture.Equal(t, total(hosttest.Of(h, WorkloadProcesses, "0", "workload")), 6, "the workloads have … processes")
		fixture.Equal(t, len(hosttest.Of(h, WorkloadProcesses, "1", "workload")), 0, "an idle GPU has workloads")
	})
}

func TestDriverOmitsMPSClients(t *testing.T) {
	calls := []string{"nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
		"nvmlDeviceGetMPSComputeRunningProcesses_v3"}
	source := fmt.Sprintf("gpus: [{processes: [{pid: 1, memory: 1, type: mps}, {pid: 2, memory: 1, type: "+
		"mps_server}]}]\nmissing_symbols: [%s]\n", strings.Join(calls, ", "))
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(2 * time.Second)
		hosttest.Want(t, h, 2, Processes, "0", "compute")
		hosttest.Want(t, h, 0, Processes, "0", "mps")
		hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "processes")
	})
}

// TestEveryKindOfWorkload reads the scenario that has one of each kind.
func TestEveryKindOfWorkload(t *testing.T) {
	c := collectors.DefaultConfig()
	c.PerProcess = true
	hosttest.In(t, "workloads", c, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(3 * time.Second)
		memory := hosttest.Of(h, WorkloadMemory, "0", "workload")
		for workload, mib := range map[string]float64{
			"container:trainer": 8000, "container:notebook": 4000, "pod:chat/llama-0/vllm": 16000,
			"pod:chat/llama-0/embed": 2000,
			"slurm:812.0":            6000, "slurm:812.1": 500, "unit:triton.service": 3000, "user:1001": 2000,
			"user:0":    200,
			"user:1002": 60,
		} {
			fixture.Equal(t, memory[workload], mib*mebibyte, "%s has … bytes, want %v MiB", workload, mib)
		}
		hosttest.Want(t, h, 1, WorkloadProcesses, "0", "unit:secret.service", "compute")
		hosttest.WantNone(t, h, WorkloadMemory, "0", "unit:secret.service", "")
		hosttest.Want(t, h, 1, WorkloadProcesses, "0", "user:1002", "graphics")
		for kind, n := range map[string]float64{"compute": 1, "graphics": 0, "mps": 2} {
			hosttest.Want(t, h, n, Processes, "1", kind)
		}
		hosttest.Want(t, h, 1, WorkloadProcesses, "1", "unit:mps-a.service", "mps")
		hosttest.WantNone(t, h, WorkloadProcesses, "1", "unit:mps-a.service", "compute")
		hosttest.Want(t, h, 30*mebibyte, WorkloadMemory, "1", "mps:0", "") // of a server with clients of two workloads
		for workload, fields := range map[string]string{
			"container:trainer": "kind=container container=trainer image=pytorch/pytorch:2.8.0-cuda12.9 uid=0",
			"pod:chat/llama-0/vllm": "kind=pod namespace=chat pod=llama-0 container=vllm " +
				"image=docker.io/vllm/vllm-openai:v0.11.0 uid=0",
			"slurm:812.0": "kind=slurm slurm_job=812 slurm_step=0 slurm_user=carol slurm_account=nlp " +
				"slurm_partition=debug uid=1003",
			"unit:triton.service": "kind=unit unit=triton.service slice=system.slice uid=997",
			"user:1001":           "kind=user unit=session-5.scope slice=user-1001.slice uid=1001",
		} {
			got := hosttest.Told(h, WorkloadInfo, "workload", workload)
			if id := got["container_id"]; strings.Contains(fields, "image=") != (len(id) == 12) {
				t.Errorf("%s has container_id %q", workload, id)
			}
			delete(got, "container_id")
			delete(got, "workload")
			for field := range strings.FieldsSeq(fields) {
				k, v, _ := strings.Cut(field, "=")
				fixture.Equal(t, got[k], v, "%s has %s", workload, k)
				delete(got, k)
			}
			fixture.Equal(t, strings.Join(slices.Collect(maps.Values(got)), ""), "",
				"%s has unexpected labels: %v", workload, got)
		}
		for pid, workload := range map[int]string{2101: "container:trainer", 2501: "user:1001"} {
			p, _ := h.NVML.(*sim.Host).Process(pid)
			hosttest.Want(t, h, float64(p.Began.UnixMilli())/1e3, WorkloadStart, "", workload)
		}
		for _, s := range h.Samples() {
			for _, l := range s.Labels {
				if len(l) > 128 || !utf8.ValidString(l) ||
					strings.ContainsFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%v has label %q", s.Metric, l)
				}
			}
		}
	})
}

// TestTimeOnTheGPUBelongsToTheWorkload compares the series with the same samples read
// each second, which need no windows because averages are over a second.
func TestTimeOnTheGPUBelongsToTheWorkload(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		model, load string
		engines     []int // indices of the engines in use
	}{
		"full": {"h100", "full", []int{0, 1}}, "training": {"h100", "training", []int{0, 1}},
		"inference": {"l4", "inference", []int{0, 1, 2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			source := fmt.Sprintf(`gpus:
- model: %s
  load: %s
  processes:
  - {pid: 1, share: 0.7, memory: 1, cgroup: /system.slice/a.service}
  - {pid: 2, share: 0.3, memory: 1, cgroup: /system.slice/b.service}
  - {pid: 3, idle: true, memory: 1, cgroup: /system.slice/c.service}
`, c.model, c.load)
			hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
				hosttest.Advance(20 * time.Second) // no process is young any more
				names := []string{"unit:a.service", "unit:b.service", "unit:c.service"}
				read := func() (used [3]engines, joules float64) {
					for i, name := range names {
						for e, m := range engineSeconds {
							used[i][e], _ = hosttest.Get(t, h, m, "0", name)
						}
					}
					return used, total(hosttest.Of(h, WorkloadEnergy, "0", "workload"))
				}
				d := hosttest.Simulated(t, h, 0)
				millijoules, _ := d.GetTotalEnergyConsumption()
				before, drawn := read()
				var truth [3]engines
				seen := time.Now()
				for range 120 {
					hosttest.Advance(time.Second)
					samples, _ := d.GetProcessUtilization(uint64(seen.UnixMicro()))
					for _, s := range samples {
						at := time.UnixMicro(int64(s.TimeStamp))
						use := engines{float64(s.SmUtil), float64(s.MemUtil), float64(s.EncUtil), float64(s.DecUtil)}
						truth[s.Pid-1] = truth[s.Pid-1].plus(use.times(at.Sub(seen).Seconds() / 100))
					}
					if len(samples) > 0 {
						seen = time.UnixMicro(int64(samples[0].TimeStamp))
					}
					for _, engine := range engineNames {
						sum := 0.0
						for _, name := range names {
							v, ok := hosttest.Get(t, h, WorkloadUse, "0", name, engine)
							if sum += v; !ok || v < 0 || sum > 1 {
								t.Fatalf("%s has %v of %s, present: %v", name, v, engine, ok)
							}
						}
					}
				}
				after, drawnNow := read()
				for i, name := range names {
					for e := range engineNames {
						got, want := after[i][e]-before[i][e], truth[i][e]
						inUse := i < 2 && slices.Contains(c.engines, e)
						if tolerance := max(.02*want, .01*120*.5); math.Abs(got-want) > tolerance ||
							inUse && got == 0 || i == 2 && got != 0 {
							t.Errorf("%s used %s for %.2f s, want %.2f", name, engineNames[e], got, want)
						}
						fixture.If(t, e == sm && c.load != "inference" && math.Abs(got-want) > .02*want,
							"%s had the SMs for %.2f s, want %.2f", name, got, want)
					}
				}
				now, _ := d.GetTotalEnergyConsumption()
				gpuJoules := float64(now-millijoules) / 1e3
				if part := (drawnNow - drawn) / gpuJoules; part > 1.002 || c.load == "full" && part < .95 {
					t.Errorf("the workloads drew %.4f of the GPU's energy", part)
				}
				if v, _ := hosttest.Get(t, h, WorkloadEnergy, "0", names[2]); v != 0 {
					t.Errorf("an idle process drew %v J", v)
				}
			})
		})
	}
}

func TestEnergyIsSharedLikeSMTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{compute: []nvml.ProcessInfo{runs(1, 1), runs(2, 1)}}
		b.use = func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return []nvml.ProcessUtilizationSample{did(1, time.Now(), 60, 0, 0, 0), did(2, time.Now(), 20, 0, 0, 0)},
				nvml.SUCCESS
		}
		s := perform(t, b)
		s.is(1, "a.service")
		s.is(2, "b.service")
		const joules = 99 * boardWatts
		s.passes(100) // the driver is also asked in the last one
		s.has(t, WorkloadEnergy, .75*joules, "unit:a.service")
		s.has(t, WorkloadEnergy, .25*joules, "unit:b.service")
		b.use = nil
		s.passes(10)
		s.has(t, WorkloadEnergy, .75*joules, "unit:a.service") // the energy of an idle GPU belongs to no workload
		b.use = func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_UNKNOWN }
		s.passes(100)
		b.use = works(50, 1)
		s.passes(1)
		if v := s.value(WorkloadEnergy, "unit:a.service"); !(v <= .75*joules+collectors.SampleDepth.Seconds()*boardWatts) {
			t.Errorf("%v J, for a time in which the active processes are unknown", v)
		}
	})
}

func TestReusedPIDBelongsToAnotherWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{compute: []nvml.ProcessInfo{runs(1, mebibyte)}, use: works(100, 1)}
		s := perform(t, b)
		s.is(1, "a.service")
		s.passes(10)
		of1 := s.value(WorkloadSM, "unit:a.service")
		s.is(1, "b.service")
		s.passes(1)
		s.has(t, WorkloadMemory, math.NaN(), "unit:a.service", "")
		s.has(t, WorkloadMemory, mebibyte, "unit:b.service", "")
		s.has(t, WorkloadProcesses, 1, "unit:b.service", "compute")
		s.passes(9)
		s.is(1, "a.service")
		s.passes(1)
		v := s.value(WorkloadSM, "unit:a.service")
		fixture.If(t, v < of1 || v > of1+2, "a.service has %v s, had %v before its PID was reused", v, of1)
	})
}

// TestUnknownProcesses have ended since the driver listed them, or belong to another PID namespace.
func TestUnknownProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{compute: []nvml.ProcessInfo{runs(1, mebibyte), runs(2, mebibyte)}, use: works(40, 1, 2)}
		s := perform(t, b)
		s.config.PerProcess = true
		s.is(1, "a.service")
		for range 20 {
			s.passes(1)
			s.has(t, Processes, 2, "compute")
			s.has(t, WorkloadMemory, mebibyte, "unit:a.service", "")
			for _, p := range s.last.Samples {
				fixture.Stop(t, p.Metric != Processes && slices.Contains(p.Labels[2:], "2") ||
					p.Metric == ProcessInfo && p.Labels[2] != "1",
					"an unidentified process is shown: %v %q", p.Metric, p.Labels)
			}
			fixture.Stop(t, s.last.Failure != nvml.SUCCESS || len(s.last.Unsupported) > 0,
				"failure %v, unsupported %v", s.last.Failure, s.last.Unsupported)
		}
		v := s.value(WorkloadSM, "unit:a.service")
		fixture.If(t, math.Abs(v-8) > .5, "beside an unknown process a workload had %v s in 20 s at 40 %%", v)
		delete(s.facts, 1)
		s.passes(1)
		for _, p := range s.last.Samples {
			fixture.Equal(t, p.Metric, Processes, "without known processes there is … %q", p.Labels)
		}
		s.has(t, Processes, 2, "compute")
		for key := range s.totals {
			fixture.Equal(t, strings.HasSuffix(key, "\x00"), false, "use without an owner, %q, is kept", key)
		}
	})
}

// late is a source of names that answers with a delay.
type late struct {
	host.Names
	after time.Duration
}

func (l late) Containers(ctx context.Context) (map[string]host.ContainerName, error) {
	select {
	case <-time.After(l.after):
		return l.Names.Containers(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestWorkloadIsShownOnceNamed waits for a name that takes some time: until then nothing is shown, and nothing is lost.
func TestWorkloadIsShownOnceNamed(t *testing.T) {
	t.Parallel()
	const slow = 1500 * time.Millisecond
	used := map[time.Duration]map[string]float64{}
	for _, after := range []time.Duration{0, slow} {
		hosttest.With(t, "workloads", func(o *collectors.Options) {
			names := slices.Clone(o.Processes.Names)
			for i := range names {
				names[i] = late{names[i], after}
			}
			o.Processes = host.NewTable(host.Options{Proc: o.Processes.Proc, Names: names})
		}, func(t *testing.T, h *collectors.Host) {
			shown := map[string]bool{}
			for i := range 300 {
				hosttest.Advance(100 * time.Millisecond)
				for name := range hosttest.Of(h, WorkloadProcesses, "0", "workload") {
					shown[name] = true
					fixture.If(t, after > 0 && i < 14 && strings.HasPrefix(name, "pod:"),
						"%s is shown before its name is known", name)
				}
			}
			own := 0
			for name := range shown {
				if i := strings.LastIndexAny(name, ":/"); len(name)-i > 64 && !strings.Contains(name, "~") {
					own++ // a name chosen by a user is not trusted, so the id is used
				}
			}
			if !shown["container:trainer"] || own != 1 {
				t.Errorf("shown were %v", slices.Sorted(maps.Keys(shown)))
			}
			used[after] = hosttest.Of(h, WorkloadSM, "0", "workload")
		})
	}
	for name, v := range used[0] {
		fixture.Near(t, used[slow][name], v, 1e-6, "%s has … s under a name that came late", name)
	}
}
