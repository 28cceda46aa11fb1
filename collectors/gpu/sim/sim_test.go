package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// parse decodes a scenario as strictly as the agent does.
func parse(t testing.TB, text string) scenarios.Scenario {
	t.Helper()
	var s scenarios.Scenario
	d := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	d.KnownFields(true)
	fixture.Must(t, d.Decode(&s))
	return s
}

// embedded decodes an embedded scenario.
func embedded(t testing.TB, name string) scenarios.Scenario {
	t.Helper()
	text := fixture.Value(scenarios.Source(name))(t)
	return parse(t, string(text))
}

// begin starts a host in a session. It is closed when the test ends.
func begin(t testing.TB, s scenarios.Scenario, o Options) *Host {
	t.Helper()
	h := fixture.Value(New(s, o))(t)
	t.Cleanup(h.Close)
	check(t, h.Init())
	return h
}

// gpuOf returns the handle of a GPU.
func gpuOf(t testing.TB, h *Host, index int) *device {
	t.Helper()
	d, ret := h.DeviceGetHandleByIndex(index)
	check(t, ret)
	return d.(*device)
}

// check fails the test unless ret is a success.
func check(t testing.TB, ret nvml.Return) {
	t.Helper()
	fixture.Need(t, ret, nvml.SUCCESS, "return is")
}

// want fails the test unless ret is as wanted.
func want(t testing.TB, what string, ret, wanted nvml.Return) {
	t.Helper()
	fixture.Equal(t, ret, wanted, "%s: return is", what)
}

// must returns the value of a call that succeeds.
func must[T any](t testing.TB) func(T, nvml.Return) T {
	return func(v T, ret nvml.Return) T {
		t.Helper()
		check(t, ret)
		return v
	}
}

// fieldOf reads one field.
func fieldOf(t testing.TB, d *device, id, scope uint32) uint64 {
	t.Helper()
	v := []nvml.FieldValue{{FieldId: id, ScopeId: scope}}
	check(t, d.GetFieldValues(v))
	fixture.Need(t, nvml.Return(v[0].NvmlReturn), nvml.SUCCESS, "field %d scope %d", id, scope)
	var n uint64
	for i := range 8 {
		n |= uint64(v[0].Value[i]) << (8 * i)
	}
	return n
}

func TestEmbeddedScenarios(t *testing.T) {
	for _, name := range scenarios.Names() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := embedded(t, name)
				fixture.Equal(t, s.Name != name || s.Doc == "", false, "name is %q, doc %q", s.Name, s.Doc)
				if name == "no_driver" { // there is nothing to open
					return
				}
				h := begin(t, s, Options{Seed: 1})
				time.Sleep(3 * time.Second)
				n := must[int](t)(h.DeviceGetCount())
				fixture.Equal(t, n == 0, name == "no_gpus", "%d GPUs", n)
				for i := range n {
					observe(t, h, i)
				}
				check(t, h.Shutdown())
				_, ret := h.DeviceGetCount()
				want(t, "a call after the session", ret, nvml.ERROR_UNINITIALIZED)
			})
		})
	}
}

// TestNewKeepsTheScenario starts two hosts from one scenario.
func TestNewKeepsTheScenario(t *testing.T) {
	s := embedded(t, "faults")
	for range 2 {
		fixture.Must(t, fixture.Error(New(s, Options{})))
	}
	fixture.Equal(t, s.Driver != "" || s.Faults[0].Count != 0, false, "New changed the scenario")
}

// TestNamedValues compares the values that a scenario can name with those that the simulation knows.
func TestNamedValues(t *testing.T) {
	severities := []string{}
	for _, s := range aerSeverities {
		severities = append(severities, s.name)
	}
	for name, c := range map[string]struct {
		gpu   scenarios.GPU
		fault scenarios.Fault
		want  []string
	}{
		"load":     {scenarios.GPU{Load: "?"}, scenarios.Fault{Kind: "hang"}, slices.Sorted(maps.Keys(loads))},
		"fabric":   {scenarios.GPU{}, scenarios.Fault{Kind: "fabric", Value: "?"}, slices.Sorted(maps.Keys(fabricFaults))},
		"severity": {scenarios.GPU{}, scenarios.Fault{Kind: "pcie_aer", Severity: "?"}, severities},
	} {
		_, err := New(scenarios.Scenario{GPUs: []scenarios.GPU{c.gpu}, Faults: []scenarios.Fault{c.fault}}, Options{})
		_, list, _ := strings.Cut(fmt.Sprint(err), "want one of ")
		list, _, _ = strings.Cut(list, ", on a model")
		fixture.Equal(t, list, strings.Join(c.want, ", "), "%s: %v, want %q", name, err, c.want)
	}
	for name, l := range loads {
		_, err := New(scenarios.Scenario{GPUs: []scenarios.GPU{{Load: name}}, Faults: []scenarios.Fault{{Kind: "leak"}}},
			Options{})
		fixture.Equal(t, err == nil, len(l.procs) > 0,
			"a leak under the load %s, which has %d processes: %v", name, len(l.procs), err)
	}
}

// observe returns what the driver, the kernel and the broker tell of a GPU and of its host, and how long that took.
func observe(t *testing.T, h *Host, index int) string {
	t.Helper()
	began, all := time.Now(), map[string]any{}
	add := func(name string, v ...any) { all[name] = v }
	n, ret := h.DeviceGetCount()
	add("host", n, ret)
	if handle, ret := h.DeviceGetHandleByIndex(index); ret == nvml.SUCCESS {
		d := handle.(*device)
		for name, call := range recordedCalls {
			v, ret := call(d)
			add(name, v, ret)
		}
		var values []nvml.FieldValue
		for id := range uint32(nvml.FI_MAX) {
			values = append(values, nvml.FieldValue{FieldId: id}, nvml.FieldValue{FieldId: id, ScopeId: allLinks})
		}
		add("fields", d.GetFieldValues(values), values)
		procs, _ := d.GetComputeRunningProcesses()
		use, _ := d.GetProcessUtilization(0)
		memory, _ := d.GetMemoryInfo_v2()
		fabric, _ := d.FabricInfo()
		add("use", procs, use, memory, fabric)
	}
	k := h.Kernel()
	devices, _ := k.PCIDevices()
	ports, _ := k.IBPorts()
	blocked, _ := k.BlockedTasks()
	for _, d := range devices {
		answers, _ := k.Answers(d.Address)
		errs, _ := k.AERErrors(d.Address, "nonfatal")
		add(d.Address, answers, errs)
	}
	books, err := h.Books()
	lines, _ := h.gpus[index].logged(0, h.now())
	add("kernel", devices, ports, blocked, books, err, lines, time.Since(began))
	return string(fixture.Value(json.Marshal(all))(t))
}

// TestEveryKind strikes one of two equal hosts with each fault of the scenario faults, which has every kind: it tells
// something else than the other. After the end of the fault it differs from a host on which the fault lasts.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	all, seen := embedded(t, "faults"), map[string]bool{}
	for _, f := range all.Faults {
		if seen[f.Kind] {
			continue
		}
		seen[f.Kind] = true
		synctest.Test(t, func(t *testing.T) {
			hostWith := func(faults ...scenarios.Fault) (*Host, nvml.EventSet) {
				s := all
				s.Faults = faults
				h := begin(t, s, Options{Seed: 3})
				set := must[nvml.EventSet](t)(h.EventSetCreate())
				for i := range must[int](t)(h.DeviceGetCount()) {
					check(t, gpuOf(t, h, i).RegisterEvents(nvml.EventTypeAll&^nvml.EventTypeClock, set))
				}
				return h, set
			}
			f.At, f.Every = scenarios.Duration(15*time.Second), 0
			short := f
			if f.For > 0 {
				f.For, short.For = scenarios.Duration(2*time.Minute), scenarios.Duration(20*time.Second)
			}
			struck, told := hostWith(short)
			lasting, _ := hostWith(f)
			later := f
			later.At = scenarios.Duration(time.Hour)
			well, untold := hostWith(later)
			differs := false
			for range 3 {
				b, wells := untold.Wait(10_000) // ms, as nothing happens there
				a, ret := told.Wait(0)
				differs = differs || a.EventType != b.EventType || ret != wells ||
					observe(t, struck, f.GPU) != observe(t, well, f.GPU)
			}
			fixture.Equal(t, differs, true, "%+v changes something", f)
			time.Sleep(20 * time.Second)
			fixture.If(t, f.For > 0 && observe(t, struck, f.GPU) == observe(t, lasting, f.GPU), "%+v does not end", f)
		})
	}
	for _, kind := range scenarios.Kinds() {
		fixture.Equal(t, seen[kind], true, "the scenario faults has %s", kind)
	}
}

// jobsOf returns the enforcer's books, and the jobs of a workload by GPU.
func jobsOf(h *Host, workload string) (e *wire.EnforcerStats, jobs []wire.JobStats) {
	s, _ := h.Books()
	for _, j := range s.Enforcer.Jobs {
		if j.Workload == workload {
			jobs = append(jobs, j)
		}
	}
	return s.Enforcer, jobs
}

// TestScenariosEscalate checks that scenarios show levels, and that mixed shows none of three audits that would alert.
func TestScenariosEscalate(t *testing.T) {
	for name, want := range map[string]string{"mixed": "[] [warn] [observe]",
		"workloads": "[throttle throttle] [warn warn] [observe observe throttle]"} {
		synctest.Test(t, func(t *testing.T) {
			h := begin(t, embedded(t, name), Options{Seed: 1})
			var got []string
			for _, after := range []time.Duration{2 * time.Minute, 30 * time.Second, 2 * time.Minute} {
				time.Sleep(after)
				levels := []string{}
				e, _ := jobsOf(h, "")
				for _, row := range e.Escalation {
					levels = append(levels, row.Level)
				}
				got = append(got, fmt.Sprint(levels))
			}
			fixture.Equal(t, strings.Join(got, " "), want, "%s: the levels are", name)
		})
	}
}

// TestDemoShowsTrouble follows the jobs of the demo for as long as a newcomer looks: one is well, one is slow, one has
// a straggler, and one hangs and gets on.
func TestDemoShowsTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := begin(t, embedded(t, "demo"), Options{Seed: 1})
		if e, _ := jobsOf(h, ""); len(e.Hangs)+len(e.Stragglers) > 0 {
			t.Errorf("trouble is told before it can be known: %+v %+v", e.Hangs, e.Stragglers)
		}
		time.Sleep(100 * time.Second)
		e, hanging := jobsOf(h, "slurm:4716.0")
		_, slow := jobsOf(h, "slurm:4713.0")
		_, well := jobsOf(h, "slurm:4711.0")
		_, straggling := jobsOf(h, "slurm:4712.0")
		fixture.If(t, len(e.Hangs) != 1 || e.Hangs[0] != (wire.HangStats{Tenant: "research", Workload: "slurm:4716.0",
			GPU: hanging[1].GPU, PID: hanging[1].PID, Rank: 1, Reason: "absent", Seconds: 60, Waiting: 1,
			Where: "/home/frank/tune.py:142 in load_batch"}), "hangs are %+v", e.Hangs)
		if s := slow[0].Slowdown; s == nil || s.Cause != "storage" || s.Evidence == "" || s.Part() < 0.2 ||
			slow[0].Median < 1.2*s.Usual || slow[0].Slow["storage"] < 100 {
			t.Errorf("the slow job is %+v, because %+v", slow[0], s)
		}
		if len(e.Stragglers) != 1 || e.Stragglers[0] != (wire.StragglerStats{Tenant: "research",
			Workload: "slurm:4712.0", GPU: straggling[1].GPU, PID: straggling[1].PID, Rank: 1, Cause: "host", Lost: 0.14}) {
			t.Errorf("stragglers are %+v", e.Stragglers)
		}
		a, b := straggling[0], straggling[1]
		fixture.If(t, b.Communicators[0].Seconds > 0.9*a.Communicators[0].Seconds ||
			b.Parts["host"] < 1.5*a.Parts["host"], "the rank does not come last: %+v, %+v", a, b)
		for _, j := range append(well, straggling...) {
			fixture.If(t, !j.Stepping || j.Slowdown != nil, "%s: %+v", j.Workload, j)
		}
		fixture.If(t, !idles(t, h, 6) || idles(t, h, 5), "the culprit computes, or the rank that waits for it does not")

		time.Sleep(30 * time.Second)
		e, again := jobsOf(h, "slurm:4716.0")
		if len(e.Hangs) != 0 || !again[0].Stepping || again[0].Steps == hanging[0].Steps {
			t.Errorf("it does not get on: %+v, %+v", e.Hangs, again[0])
		}
		if hanging[0].Stepping || again[0].Outside-hanging[0].Outside < 14 {
			t.Errorf("the time of the hang is not outside of steps: %+v, %+v", hanging[0], again[0])
		}
	})
}

// idles reports whether the driver sees no work on a GPU.
func idles(t *testing.T, h *Host, index int) bool {
	t.Helper()
	u, ret := gpuOf(t, h, index).GetUtilizationRates()
	check(t, ret)
	return u.Gpu < 10
}
