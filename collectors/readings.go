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

// MaxSeries bounds the samples of one collector in one pass.
const MaxSeries = 8192

// Readings is one pass of a collector: the state that it can use, and the
// readings that it takes. It belongs to the reader's goroutine.
type Readings struct {
	Now    time.Time // when the pass began
	Config *Config

	// What the host knows besides the GPU.
	Processes   *host.Table
	Peers       func() []*gpu.Peer // the GPUs that are read
	Known       func() []gpu.ID    // all GPUs that the host has had
	Allocations func() host.Allocated
	Books       func() (wire.Stats, error) // the broker's books; nil: ask at its socket
	Faults      *KernelFaults
	Events      func(Event) // takes the driver's events

	Samples     []Sample    // Put and Add append them
	Failure     nvml.Return // the first return code that is neither success nor an answer
	Unsupported []*Metric
	Dropped     map[*Metric]int    // numbers of samples that Drop counted
	Prefix      []string           // gpu and uuid, the first labels of each sample; empty for the host
	Totals      map[string]float64 // of Add, kept by the reader between passes

	Facts
}

// Facts are what a collector tells the host itself, which answers questions of
// other packages from them.
type Facts struct {
	Holders []DeviceProcess // processes on the GPU
	Stays   []Stay          // of the holders, and of processes that left
	MIG     []MIGDevice     // of the GPU
}

// Put records v unless ret says that there is no value, or v is impossible.
// "Not supported" leaves no sample; any other failure leaves none either and is
// remembered. The labels are those after gpu and uuid.
func (r *Readings) Put(m *Metric, v float64, ret nvml.Return, labels ...string) {
	switch {
	case gpu.Unsupported(ret):
		r.Unsupported = append(r.Unsupported, m)
		return
	case ret != nvml.SUCCESS:
		r.Fail(ret)
		return
	case !m.Plausible(v):
		r.Fail(nvml.ERROR_NO_DATA)
		return
	case len(r.Samples) == MaxSeries:
		r.Drop(m)
		return
	}
	all := make([]string, 0, len(r.Prefix)+len(labels))
	all = append(all, r.Prefix...)
	for _, l := range labels {
		all = append(all, label(l))
	}
	r.Samples = append(r.Samples, Sample{Metric: m, Labels: all, Value: v})
}

// Set records a state or an info metric that was read without error.
func (r *Readings) Set(m *Metric, v float64, labels ...string) { r.Put(m, v, nvml.SUCCESS, labels...) }

// SetHistogram records a histogram, which must not change afterwards.
func (r *Readings) SetHistogram(m *Metric, h *Histogram, labels ...string) {
	n := len(r.Samples)
	r.Set(m, float64(h.Count), labels...)
	if len(r.Samples) > n {
		r.Samples[n].Histogram = h
	}
}

// States records a state set: 1 for the current state, 0 for the others.
func (r *Readings) States(m *Metric, now int, ret nvml.Return, states ...string) {
	for i, s := range states {
		r.Put(m, Bool(i == now), ret, s)
	}
}

// Add raises a counter that the driver does not keep by delta (ignored if
// negative). It counts from the agent's start.
func (r *Readings) Add(m *Metric, delta float64, labels ...string) {
	r.Set(m, r.Keep(m, delta, labels...), labels...)
}

// AddSince is Add for a counter with a known past.
func (r *Readings) AddSince(o *Origin, m *Metric, delta float64, labels ...string) {
	n := len(r.Samples)
	r.Add(m, delta, labels...)
	if len(r.Samples) > n {
		r.Samples[n].Origin = o
	}
}

// Keep raises a counter as Add does, but does not show it.
func (r *Readings) Keep(m *Metric, delta float64, labels ...string) float64 {
	key := m.Name + "\x00" + strings.Join(labels, "\x00")
	if r.Totals == nil {
		r.Totals = map[string]float64{}
	}
	if delta > 0 && !math.IsInf(delta, 0) {
		r.Totals[key] += delta
	}
	return r.Totals[key]
}

// Forget drops the counters of Add whose labels are old.
func (r *Readings) Forget(old func(labels []string) bool) {
	for key := range r.Totals {
		if old(strings.Split(key, "\x00")[1:]) {
			delete(r.Totals, key)
		}
	}
}

// Drop counts a sample that was left out because there were too many.
func (r *Readings) Drop(m *Metric) {
	if r.Dropped == nil {
		r.Dropped = map[*Metric]int{}
	}
	r.Dropped[m]++
}

// Fail remembers a failed call.
func (r *Readings) Fail(ret nvml.Return) {
	if r.Failure == nvml.SUCCESS {
		r.Failure = ret
	}
}

// Bool is 1 for true and 0 for false.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// On is 1 for an enabled feature.
func On(s nvml.EnableState) float64 { return Bool(s == nvml.FEATURE_ENABLED) }

// maxLabel bounds a label's value, in bytes.
const maxLabel = 128

// label makes s a valid label value: UTF-8, at most maxLabel bytes.
func label(s string) string {
	if len(s) > maxLabel {
		s = s[:maxLabel]
	}
	return strings.ToValidUTF8(s, "")
}
