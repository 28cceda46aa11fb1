package health

import (
	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// BelowPeak is what checks know of falls.
var BelowPeak = collectors.Gauge("nvgpu_below_peak", "By how much the metric is below the most that it was in this boot: links and ports that were up and are down, also from before the agent was restarted.", "metric", "link", "device")

// A fall is a signal of which the peak is remembered.
type fall struct {
	name string // of its metric
	of   *Signal
}

// falls are those that the checks look at.
var falls []*fall

// fell adds to s how far each gauge is below its peak.
func (m *memory) fell(s *derived.Snapshot) {
	var all []collectors.Sample
	for _, f := range falls {
		f.of.read(m, s, func(e incident.Entity, v float64) {
			all = append(all, collectors.Sample{Metric: BelowPeak, Labels: []string{e.GPU, e.UUID, f.name, e.Link, e.Device}, Value: m.most(f.of, e, v) - v})
		})
	}
	s.Add(all...)
}
