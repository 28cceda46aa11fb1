package exporter

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promcollectors "github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"gpusteward/collectors"
)

// A view gathers samples as metric families. What is gone from the samples
// leaves no series behind, and nothing is copied: a sample's labels are
// pointed to, so that a scrape costs little more than its text.
type view struct {
	samples func() []collectors.Sample
	own     prometheus.Gatherer // families that are no samples
	self    *timed
}

// A family is what all scrapes share of a row of the catalogue.
type family struct {
	proto dto.MetricFamily
	order []int // of the labels, by name
}

var families = func() map[*collectors.Metric]*family {
	m := map[*collectors.Metric]*family{}
	for _, row := range collectors.Metrics() {
		f := &family{order: make([]int, len(row.Labels))}
		f.proto.Name, f.proto.Help = &row.Name, &row.Help
		f.proto.Type = dto.MetricType_GAUGE.Enum()
		if row.Type == collectors.CounterType {
			f.proto.Type = dto.MetricType_COUNTER.Enum()
		}
		for i := range f.order {
			f.order[i] = i
		}
		slices.SortFunc(f.order, func(a, b int) int { return strings.Compare(row.Labels[a], row.Labels[b]) })
		m[row] = f
	}
	return m
}()

// Gather converts what is known now, sorted by family.
func (v view) Gather() ([]*dto.MetricFamily, error) {
	samples := v.samples()
	labels := 0
	for i := range samples {
		labels += len(samples[i].Labels)
	}
	metrics := make([]dto.Metric, len(samples))
	gauges, counters := make([]dto.Gauge, len(samples)), make([]dto.Counter, len(samples))
	pairs, pointers := make([]dto.LabelPair, labels), make([]*dto.LabelPair, labels)
	grouped := make(map[*collectors.Metric]*dto.MetricFamily, len(families))
	out, err := v.own.Gather()
	for i := range samples {
		s, m := &samples[i], &metrics[i]
		f := families[s.Metric]
		g := grouped[s.Metric]
		if g == nil {
			g = &dto.MetricFamily{Name: f.proto.Name, Help: f.proto.Help, Type: f.proto.Type}
			grouped[s.Metric] = g
			out = append(out, g)
		}
		for k, at := range f.order {
			pairs[k].Name, pairs[k].Value = &s.Metric.Labels[at], &s.Labels[at]
			pointers[k] = &pairs[k]
		}
		n := len(f.order)
		m.Label, pairs, pointers = pointers[:n:n], pairs[n:], pointers[n:]
		if s.Metric.Type == collectors.CounterType {
			counters[i].Value, m.Counter = &s.Value, &counters[i]
		} else {
			gauges[i].Value, m.Gauge = &s.Value, &gauges[i]
		}
		g.Metric = append(g.Metric, m)
	}
	if own := v.self.latest.Load(); own != nil {
		out = append(out, *own...)
	}
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, err
}

// timed gathers the runtime's and the process's own metrics on a timer: they
// come from /proc, which no scrape touches.
type timed struct {
	registry *prometheus.Registry
	latest   atomic.Pointer[[]*dto.MetricFamily]
}

const selfInterval = 5 * time.Second

func newTimed() *timed {
	t := &timed{registry: prometheus.NewRegistry()}
	t.registry.MustRegister(promcollectors.NewGoCollector(), promcollectors.NewProcessCollector(promcollectors.ProcessCollectorOpts{}))
	return t
}

func (t *timed) run(ctx context.Context) error {
	tick := time.NewTicker(selfInterval)
	defer tick.Stop()
	for {
		if families, err := t.registry.Gather(); err == nil {
			t.latest.Store(&families)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
