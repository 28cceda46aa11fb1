package sim

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
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

// bubble runs a test with its own clock.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
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
			bubble(t, func(t *testing.T) {
				s := embedded(t, name)
				if s.Name != name || s.Doc == "" {
					t.Errorf("name is %q, doc %q", s.Name, s.Doc)
				}
				if name == "no_driver" { // there is nothing to open
					return
				}
				h := begin(t, s, Options{Seed: 1})
				time.Sleep(3 * time.Second)
				n := must[int](t)(h.DeviceGetCount())
				fixture.Equal(t, n == 0, name == "no_gpus", "%d GPUs", n)
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

// TestNamedValues compares the values that a scenario can name with those that
// the simulation knows.
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
		if list, _, _ = strings.Cut(list, ", on a model"); list != strings.Join(c.want, ", ") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for name, l := range loads {
		_, err := New(scenarios.Scenario{GPUs: []scenarios.GPU{{Load: name}}, Faults: []scenarios.Fault{{Kind: "leak"}}},
			Options{})
		fixture.Equal(t, err == nil, len(l.procs) > 0,
			"a leak under the load %s, which has %d processes: %v", name, len(l.procs), err)
	}
}

// TestKernelIsAFileSystem runs fstest.TestFS on the trees.
func TestKernelIsAFileSystem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := begin(t, embedded(t, "mixed"), Options{}).Kernel()
		if err := fstest.TestFS(k.Sys, "bus/pci/devices/0000:1b:00.0/config",
			"class/infiniband/mlx5_7/ports/1/state"); err != nil {
			t.Error(err)
		}
		fixture.Must(t, fstest.TestFS(k.Proc, "stat"))
	})
}
