package health

import (
	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// BelowPeak shows falls to the checks.
var BelowPeak = collectors.Gauge("nvgpu_below_peak",
	"Distance of the metric from its highest value in this boot: links and ports that were up and are down, also "+
		"from before a restart of the agent.",
	"metric", "link", "device")

// A fall is a signal with a remembered peak.
type fall struct {
	name  string   // of its metric
	where []string // as for Fell
	of    *Signal
}

// falls are the falls that the checks use, each once.
var falls []*fall

// fell adds to s the distance of each gauge from its peak.
func (m *memory) fell(s *derived.Snapshot) {
	var all []collectors.Sample
	for _, f := range falls {
		f.of.read(m, s, func(e incident.Entity, v float64) {
			all = append(all, collectors.Sample{Metric: BelowPeak, Labels: []string{e.GPU, e.UUID, f.name, e.Link,
				e.Device}, Value: m.most(f.of, e, v) - v})
		})
	}
	s.Add(all...)
}
