package exporter

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promcollectors "github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"gpusteward/collectors"
)

// A gatherer converts samples to metric families. A sample that is gone leaves
// no series behind. Nothing is copied: labels are pointers to the sample's
// strings, in memory that the next gathering reuses. Histograms are the
// exception: they are few, and are converted.
type gatherer struct {
	samples func() []collectors.Sample
	self    *timed      // gathered as well; nil: nothing
	minimal func() bool // whether only the minimal profile is shown; nil: never
	sparse  bool        // leaves empty labels out
	spare   sync.Pool   // of *gathering
}

// suddenZero is how long a new series of a Sudden counter is 0. Every scraper
// with an interval of up to a minute, as the rules require, meets it as 0.
const suddenZero = time.Minute

// A gathering is the memory of one Gather.
type gathering struct {
	families map[*collectors.Metric]*dto.MetricFamily
	metrics  []dto.Metric
	gauges   []dto.Gauge
	counters []dto.Counter
	pairs    []dto.LabelPair
	pointers []*dto.LabelPair
}

// grow makes room in g for so many samples and labels.
func (g *gathering) grow(samples, labels int) {
	if len(g.metrics) < samples {
		n := samples + samples/8 // room for a slightly larger next one
		g.metrics, g.gauges, g.counters = make([]dto.Metric, n), make([]dto.Gauge, n), make([]dto.Counter, n)
	}
	if len(g.pairs) < labels {
		n := labels + labels/8
		g.pairs, g.pointers = make([]dto.LabelPair, n), make([]*dto.LabelPair, n)
	}
	for _, f := range g.families {
		f.Metric = f.Metric[:0]
	}
}

// A family is a row of the catalogue as all scrapes share it.
type family struct {
	proto dto.MetricFamily
	order []int // places of the labels, sorted by name
}

// types are the types of a family by the catalogue's.
var types = map[collectors.Type]dto.MetricType{collectors.GaugeType: dto.MetricType_GAUGE,
	collectors.CounterType: dto.MetricType_COUNTER, collectors.HistogramType: dto.MetricType_HISTOGRAM}

// families holds the family of each *collectors.Metric that was gathered. A
// package that is initialized after this one may declare a metric.
var families sync.Map

func familyOf(m *collectors.Metric) *family {
	if f, known := families.Load(m); known {
		return f.(*family)
	}
	f := &family{order: make([]int, len(m.Labels))}
	f.proto.Name, f.proto.Help = &m.Name, &m.Help
	f.proto.Type = types[m.Type].Enum()
	if unit := m.Unit(); unit != "" {
		f.proto.Unit = &unit
	}
	for i := range f.order {
		f.order[i] = i
	}
	slices.SortFunc(f.order, func(a, b int) int { return strings.Compare(m.Labels[a], m.Labels[b]) })
	families.Store(m, f)
	return f
}

// Gather converts the current samples, sorted by family. The caller may use the
// families until it calls done.
func (v *gatherer) Gather() (out []*dto.MetricFamily, done func(), err error) {
	samples, now, minimal, labels := v.samples(), time.Now(), v.minimal != nil && v.minimal(), 0
	if minimal {
		samples = Minimal(samples)
	}
	for i := range samples {
		labels += len(samples[i].Labels)
	}
	g, ok := v.spare.Get().(*gathering)
	if !ok {
		g = &gathering{families: map[*collectors.Metric]*dto.MetricFamily{}}
	}
	g.grow(len(samples), labels)
	pairs, pointers := g.pairs, g.pointers
	for i := range samples {
		s, m, shared := &samples[i], &g.metrics[i], familyOf(samples[i].Metric)
		n := 0
		for _, at := range shared.order {
			if v.sparse && s.Labels[at] == "" {
				continue
			}
			pairs[n].Name, pairs[n].Value = &s.Metric.Labels[at], &s.Labels[at]
			pointers[n] = &pairs[n]
			n++
		}
		m.Label, m.Gauge, m.Counter, m.Histogram = pointers[:n:n], nil, nil, nil
		pairs, pointers = pairs[n:], pointers[n:]
		switch s.Metric.Type {
		case collectors.CounterType:
			c := &g.counters[i]
			c.Value, c.Exemplar, c.CreatedTimestamp, m.Counter = &s.Value, nil, nil, c
			if s.Origin != nil {
				trace(c, s.Origin)
				if s.Metric.Sudden && now.Sub(s.Origin.Since) < suddenZero {
					c.Value = new(0.)
				}
			}
		case collectors.HistogramType:
			m.Histogram = histogram(s.Histogram)
		default:
			g.gauges[i].Value, m.Gauge = &s.Value, &g.gauges[i]
		}
		f := g.families[s.Metric]
		if f == nil {
			f = &dto.MetricFamily{Name: shared.proto.Name, Help: shared.proto.Help, Type: shared.proto.Type,
				Unit: shared.proto.Unit}
			g.families[s.Metric] = f
		}
		f.Metric = append(f.Metric, m)
	}
	for _, f := range g.families {
		if len(f.Metric) > 0 {
			out = append(out, f)
		}
	}
	if v.self != nil {
		if own := v.self.latest.Load(); own != nil {
			for _, f := range *own {
				if !minimal || strings.HasPrefix(f.GetName(), "gpusteward_") {
					out = append(out, f)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, func() { v.spare.Put(g) }, nil
}

// trace adds to a counter when it began, and the event that raised it last.
func trace(c *dto.Counter, o *collectors.Origin) {
	c.CreatedTimestamp = timestamppb.New(o.Since)
	if o.Event != "" {
		c.Exemplar = &dto.Exemplar{Label: []*dto.LabelPair{{Name: new("event_id"), Value: &o.Event}},
			Value: new(1.), Timestamp: timestamppb.New(o.At)}
	}
}

// timed gathers on a timer the metrics that are no samples: those of the build,
// the runtime, the process (from /proc, which no scrape touches) and the
// handler.
type timed struct {
	registry *prometheus.Registry
	latest   atomic.Pointer[[]*dto.MetricFamily]
}

const selfInterval = 10 * time.Second

func newTimed() *timed {
	t := &timed{registry: prometheus.NewRegistry()}
	t.registry.MustRegister(version.NewCollector("gpusteward"), promcollectors.NewGoCollector(),
		promcollectors.NewProcessCollector(promcollectors.ProcessCollectorOpts{}))
	return t
}

func (t *timed) gather() {
	families, _ := t.registry.Gather() // what could not be gathered is absent
	t.latest.Store(&families)
}

func (t *timed) run(ctx context.Context) error {
	tick := time.NewTicker(selfInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			t.gather()
		}
	}
}
