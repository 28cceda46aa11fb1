package health

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// newLook returns a Look at a simulated host of two GPUs with these faults.
func newLook(t *testing.T, faults ...scenarios.Fault) Look {
	t.Helper()
	nv, err := sim.New(scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "training", Count: 2}}, Faults: faults},
		sim.Options{Seed: 1})
	fixture.Must(t, err)
	log := slog.New(slog.DiscardHandler)
	return Look{Host: collectors.Options{NVML: nv, Kernel: nv.Kernel(), Config: collectors.DefaultConfig(),
		Processes: nv.Table(log), Log: log},
		Kernel: nv.Follow, Boot: "boot-1", Node: "node7", Timeout: 20 * time.Second}
}

// judge runs the look, and checks its duration.
func (l Look) judge(t *testing.T, most time.Duration) Judgement {
	t.Helper()
	begin := time.Now()
	j := l.Judge(t.Context())
	fixture.AtMost(t, time.Since(begin), most, "it took")
	fixture.Equal(t, j.Source != Standalone || j.Node != "node7", false, "source %q, node %q", j.Source, j.Node)
	return j
}

// found returns the finding of a check.
func (j Judgement) found(check string) (Finding, bool) {
	i := slices.IndexFunc(j.Findings, func(f Finding) bool { return f.Check == check })
	if i < 0 {
		return Finding{}, false
	}
	return j.Findings[i], true
}

func TestLookAtAHealthyHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newLook(t).judge(t, LookLeast)
		fixture.Equal(t, j.Status != incident.OK || len(j.GPUs) != 2 || len(j.Notes) > 0, false, "%+v", j)
		for _, f := range j.Findings {
			fixture.Equal(t, f.Shadow, true, "%s of %s: %s", f.Check, f.Entity, f.Message)
		}
		for id, want := range map[string]bool{"hung_kernel": true, "mem_leak": true, "thermal_throttle_ratio": true,
			"nvlink_down": true,
			"gpu_lost":    false, "driver_hang": false, "driver_unbound": false, "xid_repeat": false,
			"power_brake":   false,
			"remap_pending": false, "agent_self": false} {
			fixture.Equal(t, slices.Contains(j.Unjudged, id), want, "%s is unjudged", id)
		}
	})
}

func TestLookFindsFaults(t *testing.T) {
	for check, c := range map[string]struct {
		fault  scenarios.Fault
		status incident.State
		reason string
	}{
		"gpu_lost": {scenarios.Fault{Kind: "lost", GPU: 1}, incident.Failed, "does not answer: gpu is lost"},
		"driver_hang": {scenarios.Fault{Kind: "wedge", GPU: 1, For: scenarios.Duration(time.Minute)},
			incident.Unhealthy, "hangs in nvml"},
		"gpu_recovery_action": {scenarios.Fault{Kind: "recovery_action", Value: "reset", GPU: 1}, incident.Unhealthy, ""},
		"remap_failed": {scenarios.Fault{Kind: "row_remap", Severity: "uncorrected", Failure: true, GPU: 1},
			incident.Failed, ""},
		"power_brake": {scenarios.Fault{Kind: "power_brake", GPU: 1}, incident.Degraded, ""},
		"xid_unknown": {scenarios.Fault{Kind: "kernel_line", Line: "NVRM: Xid (PCI:{pci}): 998, pid=1, name=x",
			GPU: 1}, incident.Degraded, ""},
		"host_kernel": {scenarios.Fault{Kind: "kernel_line", Line: "{1}[Hardware Error]: event severity: fatal"},
			incident.Degraded, ""},
	} {
		t.Run(check, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newLook(t, c.fault).judge(t, 10*time.Second)
				if f, ok := j.found(check); !ok || j.Status != c.status || f.Severity.State() != c.status {
					t.Errorf("%v: %+v", j.Status, j.Findings)
				}
				if c.reason != "" && (!strings.HasPrefix(j.GPUs[1].Reason, c.reason) || j.GPUs[0].Reason != "") {
					t.Errorf("reasons %q and %q, want %q of the second", j.GPUs[0].Reason, j.GPUs[1].Reason, c.reason)
				}
				time.Sleep(time.Minute) // of the bubble: the abandoned call returns
			})
		})
	}
}

func TestLookWithoutADriver(t *testing.T) {
	for name, c := range map[string]struct {
		fault  scenarios.Fault
		status incident.State
		why    string
	}{
		"not loaded": {scenarios.Fault{Kind: "driver_gone", For: scenarios.Duration(time.Hour)}, incident.Unhealthy,
			"driver_not_loaded"},
		"no nodes": {scenarios.Fault{Kind: "nodes_gone", For: scenarios.Duration(time.Hour)}, incident.Unhealthy,
			"nvmlInit: unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newLook(t, c.fault).judge(t, LookLeast)
				if f, ok := j.found("driver_unbound"); !ok || j.Status != c.status ||
					!strings.Contains(f.Message, c.why) {
					t.Errorf("%v, %q: %+v", j.Status, j.Reason, j.Findings)
				}
			})
		})
	}
}

// stuckInit is a driver whose initialisation hangs.
type stuckInit struct {
	*sim.Host
	release chan struct{}
}

// Init returns after it is released.
func (s stuckInit) Init() nvml.Return {
	<-s.release
	return s.Host.Init()
}

func TestHungLookTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLook(t)
		s := stuckInit{l.Host.NVML.(*sim.Host), make(chan struct{})}
		l.Host.NVML = s
		j := l.judge(t, l.Timeout)
		text, status := j.Report("text", incident.Warning)
		fixture.If(t, status != 2 ||
			!strings.Contains(text, "nvmlInit has not returned"), "exit status %d: %s", status, text)
		j.Narrow([]string{"gpu_lost"}, nil, nil)
		fixture.If(t, j.Status != incident.Unknown || j.Reason == "", "but for that: %v, %q", j.Status, j.Reason)
		close(s.release)
		time.Sleep(time.Minute)
	})
}

// TestLookWaitsForASlowDriver: without a process that keeps GPUs initialised, the driver takes long
// to open, at most as long as the time for its GPUs permits.
func TestLookWaitsForASlowDriver(t *testing.T) {
	for _, opens := range []time.Duration{8 * time.Second, 15800 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			l := newLook(t)
			s := stuckInit{l.Host.NVML.(*sim.Host), make(chan struct{})}
			l.Host.NVML = s
			time.AfterFunc(opens, func() { close(s.release) })
			if j := l.judge(t, min(opens+LookLeast, l.Timeout)); j.Status != incident.OK || len(j.GPUs) != 2 {
				t.Errorf("it opens after %v: %v: %q, %+v", opens, j.Status, j.Reason, j.Findings)
			}
		})
	}
}

func TestInterruptedLookIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLook(t)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		j := l.Judge(ctx)
		fixture.If(t, j.Status != incident.Unknown || j.Reason == "", "%+v", j)
	})
}

// agentLeft returns a directory in which an agent has saved a latched fault.
func agentLeft(t *testing.T, boot string) string {
	t.Helper()
	e := NewEngine(Checks(), time.Now())
	e.Eval(derived.NewSnapshot([]collectors.Sample{on("0", collectors.Up, 1), on("0", faults.SRAMThreshold, 1)}),
		nil, time.Now())
	saved := fixture.Value(e.Save(boot))(t)
	dir := t.TempDir()
	fixture.Must(t, (&Store{Dir: dir}).Save(kept{Engine: saved}))
	return dir
}

// contents returns the files in dir.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files := fixture.Value(os.ReadDir(dir))(t)
	for _, f := range files {
		text := fixture.Value(os.ReadFile(filepath.Join(dir, f.Name())))(t)
		all[f.Name()] = string(text)
	}
	return all
}

func TestLookUsesTheAgentsState(t *testing.T) {
	for boot, want := range map[string]bool{"boot-1": true, "boot-0": false} {
		synctest.Test(t, func(t *testing.T) {
			l := newLook(t)
			l.Store.Dir = agentLeft(t, boot)
			l.Host.StateDir = l.Store.Dir
			before := contents(t, l.Store.Dir)
			j := l.judge(t, LookLeast)
			f, ok := j.found("sram_threshold")
			fixture.If(t, ok != want || f.Latched != want ||
				(j.Status == incident.Unhealthy) != want, "of %s: %v, %+v", boot, j.Status, j.Findings)
			after := contents(t, l.Store.Dir)
			fixture.If(t, len(after) != len(before) ||
				after["health.json"] != before["health.json"], "the state was written: %v", after)
		})
	}
}

func TestLookReportsUnreadableSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLook(t)
		l.Store.Dir = t.TempDir()
		path := filepath.Join(l.Store.Dir, "health.json")
		fixture.Must(t, os.WriteFile(path, []byte("{"), 0o600))
		l.Kernel = func(context.Context, func(host.Record)) error { return errors.New("permission denied") }
		j := l.judge(t, LookLeast)
		notes := strings.Join(j.Notes, "\n")
		fixture.If(t, !strings.Contains(notes, "state health cannot be used") ||
			!strings.Contains(notes, "kernel's log cannot be read") || !strings.Contains(notes, "permission denied"),
			"notes: %s", notes)
		if all := contents(t, l.Store.Dir); len(all) != 1 || all["health.json"] != "{" {
			t.Errorf("the file that could not be used was touched: %v", all)
		}
	})
}

// One sample does not count as several, and a condition that takes days is not found in seconds.
func TestHurriedEngineNeedsSeveralSamples(t *testing.T) {
	w := newWorld(t, Checks()...)
	w.engine.hurry()
	for n, want := range []incident.State{incident.OK, incident.OK, incident.Degraded} {
		used := map[bool]float64{true: 1e9}[n == 0]
		w.step(glance, nil, on("0", collectors.Up, 1), hotAt(-1), on("0", faults.RowRemapPending, 1),
			on("0", workloads.Processes, 0, "compute"), on("0", device.MemoryBytes, used, "used"),
			collectors.Sample{Metric: Pressure, Labels: []string{"memory"}, Value: 9})
		fixture.Equal(t, w.state("thermal_margin"), want, "after %d samples", n+1)
	}
	for _, id := range []string{"orphan_memory", "agent_self"} {
		fixture.Equal(t, w.state(id), incident.OK, "%s, when memory was free again after a second", id)
	}
	fixture.Equal(t, w.state("remap_pending"), incident.Suspect, "rows that wait since 3 s are")
	for _, c := range Checks() {
		fixture.If(t, c.ID == "thermal_margin" && c.Levels[0].For.N != 6, "the checks of everybody were changed")
	}
}
