// Package catalogue lists every metric family: its name, type, labels and the
// range of its values.
package catalogue

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A Type is the kind of a metric.
type Type int

// The types of a metric.
const (
	GaugeType     Type = iota // goes up and down
	CounterType               // only rises, except at a reset
	HistogramType             // counts values by their size
)

func (t Type) String() string { return [...]string{"gauge", "counter", "histogram"}[t] }

// A Metric is one row of the catalogue: everything that the code, the rules,
// the dashboards and METRICS.md know about one family. Published names are
// frozen.
type Metric struct {
	Name, Help string
	Type       Type
	Labels     []string // the first two of a GPU's metric are gpu and uuid
	Sudden     bool     // set by Suddenly

	words       map[string]string // by the values of the label that they explain; set by Explain
	wordsOf     string
	least, most float64 // the range that real hardware can show
}

// limits are the ranges of plausible values by unit. They are wide: a fan may
// run at 110 % of its speed.
var limits = []struct {
	ending      string
	least, most float64
}{
	{"_ratio", 0, 10}, {"_celsius", -273, 1000}, {"_watts", 0, 1e6}, {"_hertz", 0, 1e12}, {"_bytes", 0, 1 << 60},
	{"", math.Inf(-1), math.Inf(1)},
}

// Plausible reports whether v is a possible value.
func (m *Metric) Plausible(v float64) bool {
	return !math.IsInf(v, 0) && v >= m.least && v <= m.most
}

// String returns the name, so that a Metric formats into PromQL.
func (m *Metric) String() string { return m.Name }

// Gauge declares a family of each GPU, with labels in addition to gpu and uuid.
func Gauge(name, help string, labels ...string) *Metric {
	return declare(&Metric{Name: name, Help: help, Type: GaugeType, Labels: append([]string{"gpu", "uuid"}, labels...)})
}

// Counter declares a family of each GPU that only rises; its name ends in
// _total.
func Counter(name, help string, labels ...string) *Metric {
	return declare(&Metric{Name: name, Help: help, Type: CounterType,
		Labels: append([]string{"gpu", "uuid"}, labels...)})
}

// Histogram declares a family of each GPU whose samples are histograms.
func Histogram(name, help string, labels ...string) *Metric {
	return declare(&Metric{Name: name, Help: help, Type: HistogramType,
		Labels: append([]string{"gpu", "uuid"}, labels...)})
}

// HostGauge declares a family of the host or the agent, without gpu and uuid.
func HostGauge(name, help string, labels ...string) *Metric {
	return declare(&Metric{Name: name, Help: help, Type: GaugeType, Labels: labels})
}

// HostCounter declares a family of the host or the agent that only rises.
func HostCounter(name, help string, labels ...string) *Metric {
	return declare(&Metric{Name: name, Help: help, Type: CounterType, Labels: labels})
}

// units are the last words of names that are OpenMetrics units; rates come
// first.
var units = []string{"bytes_per_second", "seconds", "bytes", "ratio", "hertz", "celsius", "watts", "joules"}

// Unit returns the unit in the name; "" if there is none.
func (m *Metric) Unit() string {
	for _, u := range units {
		if strings.HasSuffix(strings.TrimSuffix(m.Name, "_total"), "_"+u) {
			return u
		}
	}
	return ""
}

// Signed allows negative values.
func (m *Metric) Signed() *Metric {
	m.least = -m.most
	return m
}

// Suddenly says that a series of a counter begins when something happened.
// /metrics shows it as 0 for its first minute, and Prometheus's increase() then
// finds what happened first.
func (m *Metric) Suddenly() *Metric {
	m.Sudden = true
	return m
}

// Explain says what the values of a label mean, for people.
func (m *Metric) Explain(label string, words map[string]string) *Metric {
	m.wordsOf, m.words = label, words
	return m
}

// Words returns what a value of a label means; empty: it says so itself.
func (m *Metric) Words(label, value string) string {
	if label != m.wordsOf {
		return ""
	}
	return m.words[value]
}

var declared []*Metric

func declare(m *Metric) *Metric {
	for _, l := range limits {
		if strings.HasSuffix(m.Name, l.ending) {
			m.least, m.most = l.least, l.most
			break
		}
	}
	declared = append(declared, m)
	return m
}

// All returns the whole catalogue, sorted by name.
func All() []*Metric {
	return slices.SortedFunc(slices.Values(declared), func(a, b *Metric) int { return cmp.Compare(a.Name, b.Name) })
}
