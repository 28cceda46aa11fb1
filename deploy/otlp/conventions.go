package main

import (
	"slices"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// A convention maps series of the agent to a metric of OpenTelemetry's semantic
// conventions for hardware. Other series keep their names.
type convention struct {
	family string
	match  map[string]string // labels of the series, which become no attributes
	name   string
	unit   string            // UCUM
	updown bool              // a sum that can fall
	add    map[string]string // attributes
	rename map[string]string // labels, to attributes
}

// conventions are those of hw.gpu.* and hw.*, which are in development.
// docs/otlp.md has the same table.
var conventions = []convention{
	{family: "nvgpu_utilization_ratio", match: map[string]string{"engine": "gpu"}, name: "hw.gpu.utilization", unit: "1",
		add: map[string]string{"hw.gpu.task": "general"}},
	{family: "nvgpu_utilization_ratio", match: map[string]string{"engine": "encoder"}, name: "hw.gpu.utilization",
		unit: "1", add: map[string]string{"hw.gpu.task": "encoder"}},
	{family: "nvgpu_utilization_ratio", match: map[string]string{"engine": "decoder"}, name: "hw.gpu.utilization",
		unit: "1", add: map[string]string{"hw.gpu.task": "decoder"}},
	{family: "nvgpu_memory_bytes", match: map[string]string{"state": "used"}, name: "hw.gpu.memory.usage", unit: "By",
		updown: true},
	{family: "nvgpu_memory_total_bytes", name: "hw.gpu.memory.limit", unit: "By", updown: true},
	{family: "nvgpu_pcie_bytes_total", match: map[string]string{"direction": "tx"}, name: "hw.gpu.io", unit: "By",
		add: map[string]string{"network.io.direction": "transmit"}},
	{family: "nvgpu_pcie_bytes_total", match: map[string]string{"direction": "rx"}, name: "hw.gpu.io", unit: "By",
		add: map[string]string{"network.io.direction": "receive"}},
	{family: "nvgpu_energy_joules_total", match: map[string]string{"scope": "gpu"}, name: "hw.energy", unit: "J"},
	{family: "nvgpu_power_watts", match: map[string]string{"kind": "average", "scope": "gpu"}, name: "hw.power",
		unit: "W"},
	{family: "nvgpu_temperature_celsius", name: "hw.temperature", unit: "Cel",
		rename: map[string]string{"sensor": "hw.sensor_location"}},
	{family: "nvgpu_ecc_errors_total", match: map[string]string{"scope": "volatile"}, name: "hw.errors", unit: "{error}",
		rename: map[string]string{"severity": "error.type"}},
}

// ucum are UCUM's names of the units of other families.
var ucum = map[string]string{"seconds": "s", "bytes": "By", "ratio": "1", "hertz": "Hz", "celsius": "Cel", "watts": "W",
	"joules": "J", "bytes_per_second": "By/s"}

// translate returns the families under the names of the conventions, and the
// units of all.
func translate(families []*dto.MetricFamily) (out []*dto.MetricFamily, units map[string]string) {
	units = map[string]string{}
	model := models(families)
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		var rest []*dto.Metric
	series:
		for _, m := range f.GetMetric() {
			for i, c := range conventions {
				if c.family != f.GetName() || !c.covers(m) {
					continue
				}
				to := byName[c.name]
				if to == nil {
					to = &dto.MetricFamily{Name: &conventions[i].name, Help: f.Help, Type: f.Type}
					byName[c.name] = to
					out, units[c.name] = append(out, to), c.unit
				}
				to.Metric = append(to.Metric, c.apply(m, model))
				continue series
			}
			rest = append(rest, m)
		}
		if f.Metric = rest; len(rest) > 0 {
			out, units[f.GetName()] = append(out, f), ucum[f.GetUnit()]
		}
	}
	return out, units
}

// models returns the model of each GPU, by UUID.
func models(families []*dto.MetricFamily) map[string]string {
	all := map[string]string{}
	for _, f := range families {
		if f.GetName() == "nvgpu_info" {
			for _, m := range f.GetMetric() {
				all[label(m, "uuid")] = label(m, "name")
			}
		}
	}
	return all
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func (c convention) covers(m *dto.Metric) bool {
	for name, value := range c.match {
		if label(m, name) != value {
			return false
		}
	}
	return true
}

// apply gives a series the attributes of the convention. The index of the GPU
// stays, as gpu.
func (c convention) apply(m *dto.Metric, model map[string]string) *dto.Metric {
	attributes := map[string]string{"hw.type": "gpu", "hw.vendor": "NVIDIA"}
	for _, l := range m.GetLabel() {
		switch name := l.GetName(); {
		case name == "uuid":
			attributes["hw.id"] = l.GetValue()
			if known := model[l.GetValue()]; known != "" {
				attributes["hw.model"] = known
			}
		case c.rename[name] != "":
			attributes[c.rename[name]] = l.GetValue()
		case c.match[name] == "":
			attributes[name] = l.GetValue()
		}
	}
	for name, value := range c.add {
		attributes[name] = value
	}
	m.Label = nil
	for name, value := range attributes {
		m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &value})
	}
	return m
}

// finish gives converted metrics their units, and makes sums of gauges where
// the convention has an UpDownCounter.
func finish(all []metricdata.ScopeMetrics, units map[string]string) {
	for _, scope := range all {
		for i := range scope.Metrics {
			m := &scope.Metrics[i]
			m.Unit = units[m.Name]
			updown := slices.ContainsFunc(conventions, func(c convention) bool { return c.name == m.Name && c.updown })
			if g, ok := m.Data.(metricdata.Gauge[float64]); ok && updown {
				m.Data = metricdata.Sum[float64]{DataPoints: g.DataPoints, Temporality: metricdata.CumulativeTemporality}
			}
		}
	}
}
