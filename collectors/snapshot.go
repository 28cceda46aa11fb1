package collectors

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A snapshot is everything that a reader knows at one moment. Immutable.
type snapshot struct {
	at       time.Time // when the reader published it
	complete bool      // every collector has had its turn
	lost     nvml.Return
	passes   []*pass
}

// A pass is one collector's latest turn. Immutable.
type pass struct {
	collector   *Collector
	began       time.Time
	ended       time.Time // the turn that it belongs to, when the reader published it
	took        time.Duration
	due         time.Duration // interval between turns; 0: read once
	samples     []Sample
	failure     nvml.Return
	unsupported []*Metric
	Facts
}

// fresh reports whether p may be shown: its turn ended at most two intervals
// ago. A turn that takes longer than its interval, as on a busy host, thus shows
// all readings of a GPU or none.
func (p *pass) fresh(now time.Time) bool {
	return p.due == 0 || now.Sub(p.ended) <= 2*p.due
}

// fresh returns the passes that may be shown, if the GPU answers. s may be nil.
func (s *snapshot) fresh(now time.Time, fast time.Duration) (all []*pass) {
	if s == nil || !s.up(now, fast) {
		return nil
	}
	for _, p := range s.passes {
		if p.fresh(now) {
			all = append(all, p)
		}
	}
	return all
}

// up reports whether the GPU answers: its reader has completed a turn within
// two fast intervals, and the driver still has the GPU.
func (s *snapshot) up(now time.Time, fast time.Duration) bool {
	return s.lost == nvml.SUCCESS && now.Sub(s.at) <= 2*fast
}
