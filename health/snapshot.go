package health

import (
	"slices"

	"gpusteward/collectors"
)

// A Snapshot is what is known at one moment: the samples by metric, those
// that were read and those that health derives from them.
type Snapshot struct {
	samples map[*collectors.Metric][]collectors.Sample
}

// NewSnapshot sorts samples by metric.
func NewSnapshot(samples []collectors.Sample) *Snapshot {
	s := &Snapshot{samples: make(map[*collectors.Metric][]collectors.Sample, 256)}
	s.Add(samples...)
	return s
}

// Add adds samples.
func (s *Snapshot) Add(samples ...collectors.Sample) {
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

// Of returns the samples of m. They must not be changed.
func (s *Snapshot) Of(m *collectors.Metric) []collectors.Sample { return s.samples[m] }

// entity returns the entity that sample is about: by its gpu and uuid, and
// those of its labels link, workload and device that are in by.
func entityOf(s collectors.Sample, by []string) (e Entity) {
	for i, name := range s.Metric.Labels {
		v := s.Labels[i]
		switch name {
		case "gpu":
			e.GPU = v
		case "uuid":
			e.UUID = v
		default:
			if !slices.Contains(by, name) {
				continue
			}
			switch name {
			case "link":
				e.Link = v
			case "workload":
				e.Workload = v
			default:
				e.Device = v
			}
		}
	}
	return e
}
