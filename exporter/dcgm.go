package exporter

import (
	"cmp"
	_ "embed" // the table
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/workloads"
)

// A dcgmRow maps one series of dcgm-exporter to ours. A later row with the same
// name stands in for GPUs that lack the first.
type dcgmRow struct {
	added  bool // dcgm-exporter does not serve it by default
	name   string
	kind   collectors.Type
	help   string
	metric *collectors.Metric
	match  []string           // labels after gpu and uuid; + sums over the label, a|b over two of its values
	scale  float64            // to dcgm-exporter's unit, in whole numbers
	mig    *collectors.Metric // the same for a GPU instance: its labels are gi, then match
}

// dcgmTable has the fields of dcgm-exporter, with its types and help texts where its csv files have them: of its
// default (as collectors/testdata/dcgm.tsv), and those that sites add and dashboards show. A + among the labels sums
// over one.
//
//go:embed dcgm.tsv
var dcgmTable string

// dcgmUnits are our units in dcgm-exporter's, by its unit. A GPU that has events but no XID yet has a 0.
var dcgmUnits = map[string]float64{"": 1, "%": 100, "MHz": 1e-6, "mJ": 1000, "ns": 1e9, "kB/s": 1e-3, "KiB": 1. / 1024,
	"MiB": 1. / (1 << 20), "none yet": 0}

// dcgmRows are all rows of /metrics/dcgm. It panics at a bad row: the table is a part of the program.
var dcgmRows = func() (all []dcgmRow) {
	metrics := map[string]*collectors.Metric{}
	for _, m := range collectors.Metrics() {
		metrics[m.Name] = m
	}
	for _, c := range rowsOf(dcgmTable) {
		metric, scale, mig := metrics[c[3]], dcgmUnits[c[5]], metrics[c[6]]
		kind, known := map[string]collectors.Type{"gauge": collectors.GaugeType, "counter": collectors.CounterType}[c[2]]
		if metric == nil || !known || (mig == nil) != (c[6] == "") || scale == 0 && c[5] != "none yet" {
			panic(fmt.Sprintf("exporter: dcgm.tsv: %q", c))
		}
		all = append(all, dcgmRow{c[0] == "added", c[1], kind, c[7], metric, strings.Fields(c[4]), scale, mig})
	}
	return all
}()

// fbUsedPercent is not what its name says, as in DCGM.
const fbUsedPercent = "DCGM_FI_DEV_FB_USED_PERCENT"

// dcgmFree is the place of the row of free memory, in bytes.
var dcgmFree = slices.IndexFunc(dcgmRows, func(r dcgmRow) bool { return r.name == "DCGM_FI_DEV_FB_FREE" })

// dcgmLabels are the labels of dcgm-exporter, which renamed Hostname to hostname.
// Only GPU instances have
// GPU_I_PROFILE and GPU_I_ID. The holder's labels follow. Prometheus calls pod
// exported_pod if the target has a pod of its own, and dashboards rely on that,
// so both names are there on any target.
var dcgmLabels = []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname",
	"hostname", "DCGM_FI_DRIVER_VERSION", "namespace", "pod", "container", "exported_namespace", "exported_pod",
	"exported_container", "hpc_job"}

// dcgmMetrics are the families of the rows, by the row's place.
var dcgmMetrics = func() []*collectors.Metric {
	all := make([]*collectors.Metric, len(dcgmRows))
	for i, r := range dcgmRows {
		if i > 0 && dcgmRows[i-1].name == r.name {
			all[i] = all[i-1]
			continue
		}
		all[i] = &collectors.Metric{Name: r.name, Help: r.help, Type: r.kind, Labels: dcgmLabels}
		if r.metric == faults.XIDLast {
			all[i].Labels = append(slices.Clip(dcgmLabels), "err_code", "err_msg")
		}
	}
	return all
}()

// dcgmRowsOf are the places of the rows that use a metric.
var dcgmRowsOf = func() map[*collectors.Metric][]int {
	m := map[*collectors.Metric][]int{}
	for i, r := range dcgmRows {
		m[r.metric] = append(m[r.metric], i)
		if r.mig != nil {
			m[r.mig] = append(m[r.mig], i)
		}
	}
	return m
}()

// A dcgmEntity is a GPU, or an instance of one.
type dcgmEntity struct {
	gpu, uuid, gi      string
	pci, device, model string // of GPUs; "" if unknown
	profile            string // of instances
	held               holder
	values             []float64 // by row; NaN if there is none
	split              []bool    // by row: whether the GPU's instances have values
	xid                float64   // time of the last one
}

// A holder is the pod or the job that has an entity.
type holder struct{ namespace, pod, container, job string }

// dcgmEntities are the GPUs and instances, by uuid and gi.
type dcgmEntities map[[2]string]*dcgmEntity

func (all dcgmEntities) of(gpu, uuid, gi string) *dcgmEntity {
	e := all[[2]string{uuid, gi}]
	if e == nil {
		e = &dcgmEntity{gpu: gpu, uuid: uuid, gi: gi, values: make([]float64, len(dcgmRows)),
			split: make([]bool, len(dcgmRows))}
		for i := range e.values {
			e.values[i] = math.NaN()
		}
		all[[2]string{uuid, gi}] = e
	}
	return e
}

// dcgm converts samples to dcgm-exporter's families. As there, a GPU that is
// split shows its instances in place of itself if they have values. xid
// describes XIDs.
func dcgm(samples []collectors.Sample, hostname string, xid func(code int) string) (out []collectors.Sample) {
	all, driver := dcgmEntities{}, ""
	for _, s := range samples {
		switch s.Metric {
		case device.DriverInfo:
			driver = label(s, "driver_version")
		case device.Info:
			e := all.of(s.Labels[0], s.Labels[1], "")
			e.pci, e.model = label(s, "pci_bus_id"), label(s, "name")
			if minor := label(s, "minor"); minor != "" && minor != "-1" {
				e.device = "nvidia" + minor
			}
		case device.MIGInfo: // "1c.3g.40gb" is part of a 3g.40gb
			profile := label(s, "profile")
			if _, of, part := strings.Cut(profile, "c."); part {
				profile = of
			}
			all.of(s.Labels[0], s.Labels[1], label(s, "gi")).profile = profile
		case workloads.HolderInfo:
			all.of(s.Labels[0], s.Labels[1], label(s, "gi")).held = holder{label(s, "namespace"), label(s, "pod"),
				label(s, "container"), label(s, "slurm_job")}
		}
		for _, row := range dcgmRowsOf[s.Metric] {
			all.add(row, s)
		}
	}
	place := func(a, b *dcgmEntity) int {
		return cmp.Or(cmp.Compare(len(a.gpu), len(b.gpu)), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.uuid, b.uuid),
			cmp.Compare(len(a.gi), len(b.gi)), cmp.Compare(a.gi, b.gi))
	}
	for _, e := range slices.SortedFunc(maps.Values(all), place) {
		g, h := all.of(e.gpu, e.uuid, ""), e.held
		out = e.put(out, xid, []string{e.gpu, e.uuid, g.pci, g.device, g.model, e.profile, e.gi, hostname, hostname, driver,
			h.namespace, h.pod, h.container, h.namespace, h.pod, h.container, h.job})
	}
	return out
}

// add notes s if it belongs to the row.
func (all dcgmEntities) add(row int, s collectors.Sample) {
	r, labels := dcgmRows[row], s.Labels[2:]
	g := all.of(s.Labels[0], s.Labels[1], "")
	e := g
	if s.Metric == r.mig {
		e, labels = all.of(g.gpu, g.uuid, labels[0]), labels[1:]
	}
	for i, want := range r.match {
		if want != "+" && want != labels[i] &&
			!(strings.Contains(want, "|") && slices.Contains(strings.Split(want, "|"), labels[i])) {
			return
		}
	}
	if s.Metric == device.ClockEventActive {
		s.Value *= device.ClockReasonBit(labels[0])
	}
	g.split[row] = g.split[row] || e != g
	switch {
	case s.Metric == faults.XIDLast:
		if code, err := strconv.ParseFloat(labels[0], 64); err == nil && s.Value >= e.xid {
			e.values[row], e.xid = code, s.Value
		}
	case math.IsNaN(e.values[row]):
		e.values[row] = s.Value
	default:
		e.values[row] += s.Value
	}
}

// put adds the values of e, in dcgm-exporter's units.
func (e *dcgmEntity) put(out []collectors.Sample, xid func(code int) string, labels []string) []collectors.Sample {
	for i, r := range dcgmRows {
		v := e.values[i] * r.scale
		if r.name == fbUsedPercent {
			v /= v + e.values[dcgmFree]
		}
		instead := i > 0 && dcgmMetrics[i-1] == dcgmMetrics[i] && !math.IsNaN(e.values[i-1])
		if math.IsNaN(v) || e.split[i] || instead {
			continue
		}
		if r.scale != 1 {
			v = math.Round(v)
		}
		s := collectors.Sample{Metric: dcgmMetrics[i], Labels: labels, Value: v}
		if len(s.Metric.Labels) > len(labels) { // as there, with the code also as a label, 0 for none
			text := "No Error"
			if v != 0 {
				text = cmp.Or(xid(int(v)), "Unknown Error")
			}
			s.Labels = append(slices.Clip(labels), strconv.Itoa(int(v)), text)
		}
		out = append(out, s)
	}
	return out
}

// label returns the value of the named label of s.
func label(s collectors.Sample, name string) string {
	return s.Labels[slices.Index(s.Metric.Labels, name)]
}
