package sim

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
)

// table reads a recording: its rows by the first column.
func table(t *testing.T, name string) map[string][]string {
	t.Helper()
	rows := map[string][]string{}
	for _, cells := range fixture.Rows(t, "testdata/"+name) {
		rows[cells[0]] = cells
	}
	return rows
}

// recorded returns a GPU like the recorded one, at a load.
func recorded(t *testing.T, load string) (*Host, *device) {
	t.Helper()
	h := begin(t, scenarios.Scenario{Name: load, GPUs: []scenarios.GPU{{Model: "h100-vm", Load: load}}}, Options{Seed: 7})
	time.Sleep(20 * time.Second)
	return h, gpuOf(t, h, 0)
}

// near reports whether two numbers differ by at most a distance.
func near(a, b, distance float64) bool { return math.Abs(a-b) <= distance }

// same compares two values by their JSON.
func same(t *testing.T, what string, got, recorded any, distance float64) {
	t.Helper()
	switch r := recorded.(type) {
	case float64:
		if g, ok := got.(float64); !ok || !near(g, r, distance) {
			t.Errorf("%s is %v, recorded %v, tolerance %v", what, got, recorded, distance)
		}
	case []any:
		g, _ := got.([]any)
		if len(g) != len(r) {
			t.Errorf("%s is %v, recorded %v", what, got, recorded)
			return
		}
		for i := range r {
			same(t, what, g[i], r[i], distance)
		}
	case map[string]any:
		g, _ := got.(map[string]any)
		for key, v := range r {
			same(t, what+"."+key, g[key], v, distance)
		}
	default:
		fixture.Equal(t, got != recorded, false, "%s is %v, recorded %v", what, got, recorded)
	}
}

// TestCallsAsRecorded compares calls with those on a real H100, idle and under a matmul.
func TestCallsAsRecorded(t *testing.T) {
	rows := table(t, "nvml-calls-h100.tsv")
	words := map[string]nvml.Return{"Success": nvml.SUCCESS, "Not Supported": nvml.ERROR_NOT_SUPPORTED}
	for column, load := range map[int]string{6: "idle", 7: "full"} {
		synctest.Test(t, func(t *testing.T) {
			_, d := recorded(t, load)
			for name, call := range recordedCalls {
				row, ok := rows[name]
				if !ok {
					t.Errorf("no recording of %s", name)
					continue
				}
				v, ret := call(d)
				want(t, load+" "+name, ret, words[row[1]])
				var got, wanted any
				if ret != nvml.SUCCESS || json.Unmarshal([]byte(row[column]), &wanted) != nil {
					continue // the recording cuts long values
				}
				text := fixture.Value(json.Marshal(v))(t)
				fixture.Must(t, json.Unmarshal(text, &got))
				same(t, load+" "+name, got, wanted, callTolerances[load][name])
			}
		})
	}
}

// TestFieldsAsRecorded compares fields: the supported ones, their types, and the values that do not depend on the past.
func TestFieldsAsRecorded(t *testing.T) {
	rows := table(t, "nvml-fields-h100.tsv")
	types := map[string]nvml.ValueType{"uint": asUint, "ulonglong": asUint64, "int": asInt, "double": asDouble}
	history := map[uint32]bool{74: true, 78: true, 80: true, 81: true, 83: true, 169: true, 191: true, 197: true,
		198: true}
	distance := map[uint32]float64{82: 2, 185: 15_000, 186: 35_000}
	for column, load := range map[int]string{3: "idle", 5: "full"} {
		synctest.Test(t, func(t *testing.T) {
			_, d := recorded(t, load)
			for id := uint32(1); id < nvml.FI_MAX; id++ {
				v := []nvml.FieldValue{{FieldId: id}}
				check(t, d.GetFieldValues(v))
				row, ok := rows[strconv.Itoa(int(id))]
				if ok != (v[0].NvmlReturn == uint32(nvml.SUCCESS)) {
					t.Errorf("field %d: %v, recorded: %v", id, nvml.Return(v[0].NvmlReturn), ok)
				}
				if !ok {
					continue
				}
				if nvml.ValueType(v[0].ValueType) != types[row[1]] {
					t.Errorf("field %d: type %d, recorded %s", id, v[0].ValueType, row[1])
				}
				r := fixture.Value(strconv.ParseFloat(row[column], 64))(t)
				got := float64(fieldOf(t, d, id, 0))
				if types[row[1]] == asInt {
					got = float64(int32(fieldOf(t, d, id, 0)))
				}
				fixture.If(t, !history[id] && !near(got, r, distance[id]),
					"%s field %d is %v, recorded %v", load, id, got, r)
			}
		})
	}
}

// TestLinksAsRecorded compares the fields of an H200 with NVLinks.
func TestLinksAsRecorded(t *testing.T) {
	text := fixture.Value(os.ReadFile("testdata/nvml-h200x2.json"))(t)
	var recording map[string]struct {
		Fields map[string]float64 `json:"fields"`
	}
	fixture.Must(t, json.Unmarshal(text, &recording))
	synctest.Test(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Model: "h200"}}}, Options{})
		d := gpuOf(t, h, 0)
		static := []uint32{91, 138, 139, 146, 147, 161, 162, 163, 164, 165, 166, 167, 168, 187, 188, 189, 190, 192, 193,
			194, 195, 196, 200, 223, 224, 225, 230}
		for id := uint32(1); id < nvml.FI_MAX; id++ {
			v := []nvml.FieldValue{{FieldId: id}}
			check(t, d.GetFieldValues(v))
			if _, ok := recording["0"].Fields[strconv.Itoa(int(id))]; ok != (v[0].NvmlReturn == uint32(nvml.SUCCESS)) {
				t.Errorf("field %d: %v, recorded: %v", id, nvml.Return(v[0].NvmlReturn), ok)
			}
		}
		for _, id := range static {
			got, r := fieldOf(t, d, id, 0), recording["0"].Fields[strconv.Itoa(int(id))]
			fixture.If(t, float64(int32(got)) != r, "field %d is %d, recorded %v", id, got, r)
		}
	})
}

// TestMetricsAsRecorded compares GPM metrics.
func TestMetricsAsRecorded(t *testing.T) {
	rows := table(t, "nvml-gpm-h100.tsv")
	distance := map[uint32]float64{1: 2, 2: 2, 3: 1, 4: 0.3, 5: 2, 7: 2, 10: 1, 20: 0.5, 21: 0.6}
	for column, load := range map[int]string{1: "idle", 2: "full"} {
		synctest.Test(t, func(t *testing.T) {
			h, d := recorded(t, load)
			for id, v := range measure(t, h, d, 1, 2, 3, 4, 5, 7, 10, 20, 21) {
				r := fixture.Value(strconv.ParseFloat(rows[strconv.Itoa(int(id))][column], 64))(t)
				fixture.Equal(t, near(v, r, distance[id]), true, "%s metric %d is %v, recorded %v", load, id, v, r)
			}
		})
	}
}

// measure returns GPM metrics over one second.
func measure(t testing.TB, h *Host, d *device, ids ...uint32) map[uint32]float64 {
	t.Helper()
	from, to := must[nvml.GpmSample](t)(h.GpmSampleAlloc()), must[nvml.GpmSample](t)(h.GpmSampleAlloc())
	check(t, d.GpmSampleGet(from))
	time.Sleep(time.Second)
	check(t, d.GpmSampleGet(to))
	return metrics(t, h, from, to, ids...)
}

// metrics computes GPM metrics.
func metrics(t testing.TB, h *Host, from, to nvml.GpmSample, ids ...uint32) map[uint32]float64 {
	t.Helper()
	get := nvml.GpmMetricsGetType{NumMetrics: uint32(len(ids)), Sample1: from, Sample2: to}
	for i, id := range ids {
		get.Metrics[i].MetricId = id
	}
	check(t, h.GpmMetricsGet(&get))
	all := map[uint32]float64{}
	for _, m := range get.Metrics[:get.NumMetrics] {
		if m.NvmlReturn != uint32(nvml.SUCCESS) {
			t.Errorf("metric %d: %v", m.MetricId, nvml.Return(m.NvmlReturn))
		}
		all[m.MetricId] = m.Value
	}
	return all
}

// TestProcessesAsRecorded compares the process of the matmul.
func TestProcessesAsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, d := recorded(t, "full")
		procs := must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses())
		fixture.If(t, len(procs) != 1 || procs[0].UsedGpuMemory != 1184890880 || procs[0].GpuInstanceId != noInstance,
			"processes are %+v", procs)
		use := must[[]nvml.ProcessUtilizationSample](t)(d.GetProcessUtilization(0))
		fixture.If(t, len(use) != 1 || !near(float64(use[0].SmUtil), 93, 3) || !near(float64(use[0].MemUtil), 31, 2),
			"utilization is %+v", use)
		_, ret := d.GetProcessUtilization(use[0].TimeStamp)
		want(t, "utilization since the last", ret, nvml.ERROR_NOT_FOUND)
		watts := fieldOf(t, d, nvml.FI_DEV_POWER_AVERAGE, nvml.POWER_SCOPE_MEMORY)
		fixture.If(t, !near(float64(watts), 134_860, 4000), "memory draws %d mW", watts)
	})
	synctest.Test(t, func(t *testing.T) {
		_, d := recorded(t, "idle")
		_, ret := d.GetProcessUtilization(0)
		want(t, "utilization when idle", ret, nvml.ERROR_NOT_FOUND)
	})
}
