package derived

import (
	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// A Snapshot is what is known at one moment: the samples by metric, those
// that were read and those that health derives from them.
type Snapshot struct {
	samples map[*collectors.Metric][]collectors.Sample
	added   []collectors.Sample // by Add
}

// NewSnapshot sorts samples by metric.
func NewSnapshot(samples []collectors.Sample) *Snapshot {
	s := &Snapshot{samples: make(map[*collectors.Metric][]collectors.Sample, 256), added: make([]collectors.Sample, 0, 1024)}
	s.put(samples)
	return s
}

// Add adds what is derived from the others.
func (s *Snapshot) Add(samples ...collectors.Sample) {
	s.added = append(s.added, samples...)
	s.put(samples)
}

func (s *Snapshot) put(samples []collectors.Sample) {
	// Samples of a metric mostly come in a row: one look at the map for each run.
	for len(samples) > 0 {
		m, n := samples[0].Metric, 1
		for n < len(samples) && samples[n].Metric == m {
			n++
		}
		if have, ok := s.samples[m]; ok {
			s.samples[m] = append(have, samples[:n]...)
		} else {
			s.samples[m] = samples[:n:n]
		}
		samples = samples[n:]
	}
}

// Added returns what Add added so far. It must not be changed.
func (s *Snapshot) Added() []collectors.Sample { return s.added }

// Of returns the samples of m. They must not be changed.
func (s *Snapshot) Of(m *collectors.Metric) []collectors.Sample { return s.samples[m] }

// Answers reports whether the GPU does. The node, the zero Entity, does when
// it has GPUs, and all answer. While the agent is drained, or there is no
// driver, nobody does: what was known then is not known now.
func (s *Snapshot) Answers(gpu incident.Entity) bool {
	some := false
	for _, up := range s.Of(collectors.Up) {
		if gpu == (incident.Entity{}) || incident.EntityOf(up, nil) == gpu {
			if some = up.Value == 1; !some {
				return false
			}
		}
	}
	return some
}
