package derived

import (
	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// A Snapshot is the state of one moment: the samples by metric, both the
// readings and those that health derives from them.
type Snapshot struct {
	samples map[*collectors.Metric][]collectors.Sample
	added   []collectors.Sample // by Add
}

// NewSnapshot sorts samples by metric.
func NewSnapshot(samples []collectors.Sample) *Snapshot {
	s := &Snapshot{samples: make(map[*collectors.Metric][]collectors.Sample, 256),
		added: make([]collectors.Sample, 0, 1024)}
	s.put(samples)
	return s
}

// Add adds derived samples.
func (s *Snapshot) Add(samples ...collectors.Sample) {
	s.added = append(s.added, samples...)
	s.put(samples)
}

func (s *Snapshot) put(samples []collectors.Sample) {
	// Samples of a metric are mostly consecutive: each run needs one look at
	// the map.
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

// Added returns the samples that Add has added. The caller must not change
// them.
func (s *Snapshot) Added() []collectors.Sample { return s.added }

// Of returns the samples of m. The caller must not change them.
func (s *Snapshot) Of(m *collectors.Metric) []collectors.Sample { return s.samples[m] }

// Answers reports whether the GPU answers. The node, the zero Entity, answers
// if it has GPUs and all of them answer. While the agent is drained, or there
// is no driver, none does: earlier knowledge is not current.
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
