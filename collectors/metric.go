// Package collectors reads GPUs on timers and keeps the latest of what they
// said. A Metric is a row of the catalogue, a Collector reads some of them
// from one GPU, a reader runs the collectors of one GPU, and the Host keeps
// the readers and answers for all of them without touching the driver.
package collectors

import "gpusteward/collectors/catalogue"

// What the catalogue calls its own is called so here too: a row needs no other
// import, nor does who reads it.
type (
	Metric = catalogue.Metric
	Type   = catalogue.Type
)

// The types that a metric can have.
const (
	GaugeType   = catalogue.GaugeType
	CounterType = catalogue.CounterType
)

// These declare families and list them: see the catalogue.
var (
	Gauge       = catalogue.Gauge
	Counter     = catalogue.Counter
	HostGauge   = catalogue.HostGauge
	HostCounter = catalogue.HostCounter
	Metrics     = catalogue.All
)

// A Sample is one value of one Metric. Immutable.
type Sample struct {
	Metric *Metric
	Labels []string // as many as Metric.Labels, in that order
	Value  float64
}
