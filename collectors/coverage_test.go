package collectors_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

// A seriesRef names a series of ours in a table of testdata:
//
//	nvgpu_memory_bytes{state="used"}       its value
//	nvgpu_info:serial                      the label's value on the series that is 1, or is the largest
//	sum(nvgpu_nvlink_bytes_total{kind="data"})  the sum over the labels left out
type seriesRef struct {
	text   string
	metric *collectors.Metric
	match  map[string]string
	label  string
	sum    bool
}

var (
	refPattern   = regexp.MustCompile(`^(sum\()?([a-z0-9_]+)(?:\{([^}]*)\})?(?::([a-z_]+))?(\))?$`)
	matchPattern = regexp.MustCompile(`^([a-z_]+)="([^"]*)"$`)
)

// parseRef refuses names that are not in the catalogue, and ambiguous references.
func parseRef(text string) (seriesRef, error) {
	p := refPattern.FindStringSubmatch(text)
	if p == nil || (p[1] == "") != (p[5] == "") {
		return seriesRef{}, fmt.Errorf("%q is not metric, metric{label=\"value\"}, metric:label or sum(metric)", text)
	}
	ref := seriesRef{text: text, match: map[string]string{}, label: p[4], sum: p[1] != ""}
	for _, m := range collectors.Metrics() {
		if m.Name == p[2] {
			ref.metric = m
		}
	}
	if ref.metric == nil {
		return ref, fmt.Errorf("no metric is called %q", p[2])
	}
	for pair := range strings.SplitSeq(p[3], ",") {
		if p[3] == "" {
			break
		}
		kv := matchPattern.FindStringSubmatch(pair)
		if kv == nil {
			return ref, fmt.Errorf("%q: %q is not label=\"value\"", text, pair)
		}
		ref.match[kv[1]] = kv[2]
	}
	for _, name := range append(slices.Collect(maps.Keys(ref.match)), ref.label) {
		if name != "" && !slices.Contains(ref.metric.Labels, name) {
			return ref, fmt.Errorf("%s has no label %q", ref.metric, name)
		}
	}
	open := len(ref.metric.Labels) - len(ref.match)
	if ref.ofGPU() {
		open -= 2 // gpu and uuid are given
	}
	if ref.label == "" && !ref.sum && open > 0 {
		return ref, fmt.Errorf("%q leaves labels of %q open: give them all, or sum()", text, ref.metric.Labels)
	}
	return ref, nil
}

// ofGPU reports whether each GPU has the metric.
func (r seriesRef) ofGPU() bool {
	return len(r.metric.Labels) > 1 && r.metric.Labels[0] == "gpu" && r.metric.Labels[1] == "uuid"
}

// readTable returns the rows of a table in testdata, without its heading.
func readTable(t testing.TB, name string, columns ...string) [][]string {
	t.Helper()
	rows := fixture.Rows(t, "testdata/"+name)
	fixture.EqualSlices(t, rows[0], columns, "%s: the heading is", name)
	seen := map[string]bool{}
	for i, row := range rows[1:] {
		fixture.Need(t, len(row), len(columns), "%s:%d: columns", name, i+2)
		fixture.Equal(t, row[len(row)-1] == "", false, "%s:%d: %s has no note that explains it", name, i+2, row[0])
		fixture.Equal(t, seen[row[0]], false, "%s:%d: duplicate row %s", name, i+2, row[0])
		seen[row[0]] = true
	}
	return rows[1:]
}

// TestNvidiaSMIIsCovered fails if nvidia-smi shows a value that the catalogue neither has nor excludes with a reason.
func TestNvidiaSMIIsCovered(t *testing.T) {
	rows := smiTable(t) // it checks the series of each row
	gpus := fixture.Value(parseSMI(recordedSMI(t)))(t)
	paths := map[string]bool{}
	for _, g := range gpus {
		for path := range g.values {
			paths[path] = true
		}
	}
	for _, r := range rows {
		fixture.Equal(t, paths[r.path], true, "nvidia-smi.tsv has a row for %s, which nvidia-smi does not show", r.path)
		delete(paths, r.path)
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		t.Errorf("nvidia-smi shows %s: nvidia-smi.tsv has no row for it", path)
	}
}

// dcgmDefaults are the fields that dcgm-exporter serves by default.
var dcgmDefaults = strings.Fields(`
	DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_MEMORY_TEMP DCGM_FI_DEV_GPU_TEMP
	DCGM_FI_DEV_POWER_USAGE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION DCGM_FI_DEV_PCIE_REPLAY_COUNTER
	DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_MEM_COPY_UTIL DCGM_FI_DEV_ENC_UTIL DCGM_FI_DEV_DEC_UTIL
	DCGM_FI_DEV_XID_ERRORS DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_RESERVED
	DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS
	DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_ROW_REMAP_FAILURE
	DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_SM_ACTIVE DCGM_FI_PROF_SM_OCCUPANCY
	DCGM_FI_PROF_PIPE_TENSOR_ACTIVE DCGM_FI_PROF_DRAM_ACTIVE DCGM_FI_PROF_PCIE_TX_BYTES
	DCGM_FI_PROF_PCIE_RX_BYTES DCGM_FI_PROF_NVLINK_TX_BYTES DCGM_FI_PROF_NVLINK_RX_BYTES`)

func TestDCGMIsCovered(t *testing.T) {
	var fields []string
	for _, row := range readTable(t, "dcgm.tsv", "field", "series", "scale", "note") {
		field, series, scale := row[0], row[1], row[2]
		fields = append(fields, field)
		if series == "" {
			continue // the note gives the reason, as readTable requires
		}
		fixture.Must(t, fixture.Error(parseRef(series)))
		v, err := strconv.ParseFloat(scale, 64)
		fixture.If(t, err != nil || v <= 0, "dcgm.tsv: %s: the scale to DCGM's unit is %q", field, scale)
	}
	fixture.EqualSlices(t, slices.Sorted(slices.Values(fields)), slices.Sorted(slices.Values(dcgmDefaults)),
		"dcgm.tsv has\n%v\nand dcgm-exporter\n%v", fields, dcgmDefaults)
}
