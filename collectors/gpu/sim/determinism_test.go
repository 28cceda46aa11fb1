package sim

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
)

// snapshot returns everything that a GPU reports, as text.
func snapshot(t *testing.T, d *device) string {
	t.Helper()
	all := map[string]any{}
	for name, c := range recordedCalls {
		v, ret := c.call(d)
		all[name] = []any{v, ret}
	}
	var values []nvml.FieldValue
	for id := range uint32(nvml.FI_MAX) {
		values = append(values, nvml.FieldValue{FieldId: id}, nvml.FieldValue{FieldId: id, ScopeId: allLinks})
	}
	all["fields"] = []any{d.GetFieldValues(values), values}
	_, power, _ := d.GetSamples(nvml.TOTAL_POWER_SAMPLES, 0)
	_, usage, _ := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, 0)
	procs, _ := d.GetComputeRunningProcesses()
	use, _ := d.GetProcessUtilization(0)
	memory, _ := d.GetMemoryInfo_v2()
	fabric, _ := d.FabricInfo()
	all["samples"], all["processes"], all["uuid"] = []any{power, usage}, []any{procs, use}, d.gpu.uuid("GPU", 0)
	all["memory"], all["fabric"] = memory, fabric
	return marshal(t, all)
}

// subscribe registers for all event types of every GPU.
func subscribe(t *testing.T, h *Host) nvml.EventSet {
	t.Helper()
	set := must[nvml.EventSet](t)(h.EventSetCreate())
	for i := range must[int](t)(h.DeviceGetCount()) {
		d := gpuOf(t, h, i)
		check(t, d.RegisterEvents(must[uint64](t)(d.GetSupportedEventTypes()), set))
	}
	return set
}

// observe returns what the driver, the kernel and the broker tell of a GPU and
// of its host, and how long that took.
func observe(t *testing.T, h *Host, index int) string {
	t.Helper()
	began := time.Now()
	n, ret := h.DeviceGetCount()
	text := fmt.Sprintln(n, ret)
	if d, ret := h.DeviceGetHandleByIndex(index); ret != nvml.SUCCESS {
		text += fmt.Sprintln("no handle:", ret)
	} else {
		text += snapshot(t, d.(*device))
	}
	k := h.Kernel()
	devices, _ := k.PCIDevices()
	ports, _ := k.IBPorts()
	blocked, _ := k.BlockedTasks()
	boot, _ := k.BootID()
	text += fmt.Sprintln(devices, ports, blocked, boot)
	for _, d := range devices {
		answers, _ := k.Answers(d.Address)
		errs, _ := k.AERErrors(d.Address, "nonfatal")
		text += fmt.Sprintln(answers, errs)
	}
	books, err := h.Books()
	text += fmt.Sprintln(marshal(t, books), err, h.ContainerNames())
	lines, _ := h.gpus[index].logged(0, h.now())
	text += fmt.Sprintln(lines)
	return text + time.Since(began).String()
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	return string(fixture.Value(json.Marshal(v))(t))
}

// TestSeedDecides checks that equal seeds give equal hosts, whatever the order
// of the reads, and that different seeds do not.
func TestSeedDecides(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mixed", "models", "workloads"} {
		bubble(t, func(t *testing.T) {
			s := embedded(t, name)
			read, unread, other := begin(t, s, Options{Seed: 3}), begin(t, s, Options{Seed: 3}),
				begin(t, s, Options{Seed: 4})
			n := must[int](t)(read.DeviceGetCount())
			for i := range 20 {
				time.Sleep(3333 * time.Millisecond)
				observe(t, read, i%n)
			}
			for i := range n {
				a := observe(t, read, i)
				if b := observe(t, unread, i); a != b {
					t.Errorf("%s GPU %d: equal seeds differ:\n%s\n%s", name, i, a, b)
				}
				if b := observe(t, other, i); a == b {
					t.Errorf("%s GPU %d: different seeds agree", name, i)
				}
			}
		})
	}
}

// TestEveryKind strikes one of two equal hosts with each fault of the scenario
// faults, which has every kind: it tells something else than the other. After
// the end of the fault it differs from a host on which the fault lasts.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	all, seen := embedded(t, "faults"), map[string]bool{}
	for _, f := range all.Faults {
		if seen[f.Kind] {
			continue
		}
		seen[f.Kind] = true
		t.Run(f.Kind, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				hostWith := func(faults ...scenarios.Fault) (*Host, nvml.EventSet) {
					s := all
					s.Faults = faults
					h := begin(t, s, Options{Seed: 3})
					return h, subscribe(t, h)
				}
				long := f
				long.At, long.Every = scenarios.Duration(15*time.Second), 0
				if f.For > 0 {
					long.For = scenarios.Duration(2 * time.Minute)
				}
				short := long
				short.For = min(long.For, scenarios.Duration(20*time.Second))
				struck, told := hostWith(short)
				lasting, _ := hostWith(long)
				well, untold := hostWith()
				differs := false
				for range 3 {
					time.Sleep(10 * time.Second)
					a, ret := told.Wait(0)
					b, wells := untold.Wait(0)
					differs = differs || a.EventType != b.EventType || ret != wells ||
						observe(t, struck, f.GPU) != observe(t, well, f.GPU)
				}
				fixture.Equal(t, differs, true, "%+v changes nothing", f)
				time.Sleep(20 * time.Second)
				if f.For > 0 && observe(t, struck, f.GPU) == observe(t, lasting, f.GPU) {
					t.Errorf("%+v does not end", f)
				}
			})
		})
	}
	for _, kind := range scenarios.Kinds() {
		fixture.Equal(t, seen[kind], true, "the scenario faults has no %s", kind)
	}
}
