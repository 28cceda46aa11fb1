package collectors

import (
	"slices"
	"time"
)

// Internals for the tests that read hosts through all collectors.
const (
	OpenMost = openMost
	MaxLabel = maxLabel
)

// SelfMetrics are the metrics that no collector puts.
var SelfMetrics = selfMetrics

// A Pass is a pass of a collector that its reader has published.
type Pass struct {
	Collector    *Collector
	GPU          int // index, or -1
	Began, Ended time.Time
	Turn         time.Time // when the reader published it
	Samples      []Sample
}

// Passes returns the last pass of each collector on each GPU.
func (h *Host) Passes() (all []Pass) {
	for _, r := range append(slices.Clone(h.state.Load().readers), h.kernel...) {
		if snap := r.snap.Load(); snap != nil {
			for _, p := range snap.passes {
				all = append(all, Pass{p.collector, r.index, p.began, p.ended, snap.at, p.samples})
			}
		}
	}
	return all
}

// Hanging returns the call that a GPU hangs in.
func (h *Host) Hanging(index int) string {
	call, _ := h.state.Load().readers[index+1].hangs(time.Now())
	return call
}

// Unregister forgets a collector of a test.
func Unregister(c *Collector) {
	registered = slices.DeleteFunc(registered, func(r *Collector) bool { return r == c })
}
