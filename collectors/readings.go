package collectors

import (
	"math"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/internal/wire"
)

// maxSeries bounds the samples of one collector in one pass.
const maxSeries = 8192

// Readings receives the readings of one collector in one pass. It belongs to
// the reader's goroutine.
type Readings struct {
	Now time.Time // when the pass began

	config      *Config
	processes   *host.Table
	gpus        func() []*gpu.Peer // the GPUs that are read
	known       func() []gpu.ID    // all GPUs that the host has had
	allocations func() []host.Allocation
	books       func() (wire.Stats, error) // the broker's books; nil: ask at its socket
	events      func(Event)
	faults      *kernelFaults
	prefix      []string // gpu and uuid, or empty for the host
	samples     []Sample
	failure     nvml.Return // the first return code that is neither success nor an answer
	unsupported []*Metric
	dropped     map[*Metric]int
	holders     []DeviceProcess    // processes on the GPU
	stays       []Stay             // of the holders, and of processes that left
	totals      map[string]float64 // of Add, kept by the reader between passes
}

// Put records v unless ret says that there is no value, or v is impossible.
// "Not supported" leaves no sample; any other failure leaves none either and is
// remembered. The labels are those after gpu and uuid.
func (r *Readings) Put(m *Metric, v float64, ret nvml.Return, labels ...string) {
	switch {
	case gpu.Unsupported(ret):
		r.unsupported = append(r.unsupported, m)
		return
	case ret != nvml.SUCCESS:
		r.Fail(ret)
		return
	case !m.Plausible(v):
		r.Fail(nvml.ERROR_NO_DATA)
		return
	case len(r.samples) == maxSeries:
		r.drop(m)
		return
	}
	all := make([]string, 0, len(r.prefix)+len(labels))
	all = append(all, r.prefix...)
	for _, l := range labels {
		all = append(all, label(l))
	}
	r.samples = append(r.samples, Sample{m, all, v})
}

// Set records a state or an info metric that was read without error.
func (r *Readings) Set(m *Metric, v float64, labels ...string) { r.Put(m, v, nvml.SUCCESS, labels...) }

// States records a state set: 1 for the current state, 0 for the others.
func (r *Readings) States(m *Metric, now int, ret nvml.Return, states ...string) {
	for i, s := range states {
		r.Put(m, Bool(i == now), ret, s)
	}
}

// Add raises a counter that the driver does not keep by delta (ignored if
// negative). It counts from the agent's start.
func (r *Readings) Add(m *Metric, delta float64, labels ...string) {
	r.Set(m, r.keep(m, delta, labels...), labels...)
}

// keep raises a counter as Add does, but does not show it.
func (r *Readings) keep(m *Metric, delta float64, labels ...string) float64 {
	key := m.Name + "\x00" + strings.Join(labels, "\x00")
	if r.totals == nil {
		r.totals = map[string]float64{}
	}
	if delta > 0 && !math.IsInf(delta, 0) {
		r.totals[key] += delta
	}
	return r.totals[key]
}

// forget drops the counters of Add whose labels are old.
func (r *Readings) forget(old func(labels []string) bool) {
	for key := range r.totals {
		if old(strings.Split(key, "\x00")[1:]) {
			delete(r.totals, key)
		}
	}
}

// drop counts a sample that was left out because there were too many.
func (r *Readings) drop(m *Metric) {
	if r.dropped == nil {
		r.dropped = map[*Metric]int{}
	}
	r.dropped[m]++
}

// Fail remembers a failed call.
func (r *Readings) Fail(ret nvml.Return) {
	if r.failure == nvml.SUCCESS {
		r.failure = ret
	}
}

// Bool is 1 for true and 0 for false.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// on is 1 for an enabled feature.
func on(s nvml.EnableState) float64 { return Bool(s == nvml.FEATURE_ENABLED) }

// scaled converts v to the metric's unit by the factor scale. Dividing by a
// round number keeps 87.704 W from becoming 87.70400000000001.
func scaled(v, scale float64) float64 {
	if scale < 1 {
		return v / math.Round(1/scale)
	}
	return v * scale
}

// A field maps a field of NVML's field interface to a metric, with the factor
// between their units.
type field struct {
	id, scope uint32
	metric    *Metric
	scale     float64
	labels    []string
}

// readFields returns a Read that asks for all fields in one call.
func readFields(fields ...field) Read {
	return func(g *gpu.Device, out *Readings) { out.fields(g, fields) }
}

func (r *Readings) fields(g *gpu.Device, fields []field) {
	values := make([]nvml.FieldValue, len(fields))
	for i, f := range fields {
		values[i].FieldId, values[i].ScopeId = f.id, f.scope
	}
	g.Fields(values)
	for i, f := range fields {
		v, ret := gpu.FieldNumber(values[i])
		if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND {
			ret = nvml.ERROR_NOT_SUPPORTED // the driver does not know the field or scope
		}
		r.Put(f.metric, scaled(v, f.scale), ret, f.labels...)
	}
}

// maxLabel bounds a label's value, in bytes.
const maxLabel = 128

// label makes s a valid label value: UTF-8, at most maxLabel bytes.
func label(s string) string {
	if len(s) > maxLabel {
		s = s[:maxLabel]
	}
	return strings.ToValidUTF8(s, "")
}
