package collectors

import (
	"time"

	"gpusteward/collectors/catalogue"
	"gpusteward/internal/wire"
)

// Aliases for the catalogue's types, so that collectors and their users need no
// other import.
type (
	// Metric is a row of the catalogue.
	Metric = catalogue.Metric
	// Type is the type of a metric.
	Type = catalogue.Type
)

// The types of a metric.
const (
	GaugeType     = catalogue.GaugeType
	CounterType   = catalogue.CounterType
	HistogramType = catalogue.HistogramType
)

// These functions declare families and list them: see the catalogue.
var (
	Gauge        = catalogue.Gauge
	Counter      = catalogue.Counter
	NewHistogram = catalogue.Histogram
	HostGauge    = catalogue.HostGauge
	HostCounter  = catalogue.HostCounter
	Metrics      = catalogue.All
)

// A Histogram is the value of a sample of HistogramType.
type Histogram = wire.Exponential

// A Sample is one value of one Metric. Immutable.
type Sample struct {
	Metric    *Metric
	Labels    []string // one for each of Metric.Labels, in that order
	Value     float64  // of a histogram: its count
	Histogram *Histogram
	Origin    *Origin // of a counter; nil: unknown. It is immutable
}

// An Origin is the past of a counter.
type Origin struct {
	Since time.Time // when it was 0
	Event string    // ID of the journal's event that raised it last; "" if none did
	At    time.Time // of that event
}
