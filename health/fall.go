package health

import (
	"slices"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// BelowPeak shows falls to the checks.
var BelowPeak = collectors.Gauge("nvgpu_below_peak",
	"How far the metric that the label names is below its highest value so far: 1 for a link or a port that was up once and is "+
		"down. A restart of the agent or of the host does not forget the highest value; an acknowledgement does.",
	"metric", "link", "device")

// A fall is a signal with a remembered peak.
type fall struct {
	name  string   // of its metric
	where []string // as for Fell
	of    *Signal
}

// isFall reports whether a query is that of a fall. What the host had, it has
// after a boot too.
func isFall(query string) bool {
	return slices.ContainsFunc(falls, func(f *fall) bool { return f.of.query == query })
}

// accept makes the present values of an entity the highest ones, for the
// falls that a check uses.
func (m *memory) accept(c *Check, e incident.Entity) {
	for _, used := range c.Metrics() {
		for _, f := range falls {
			if f.name == used.Name {
				delete(m.peaks, peak{f.of.query, e})
			}
		}
	}
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
