package collectors

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Scaled converts v to the metric's unit by the factor scale. Dividing by a
// round number keeps 87.704 W from becoming 87.70400000000001.
func Scaled(v, scale float64) float64 {
	if scale < 1 {
		return v / math.Round(1/scale)
	}
	return v * scale
}

// A Field maps a field of NVML's field interface to a metric, with the factor
// between their units.
type Field struct {
	ID, Scope uint32
	Metric    *Metric
	Scale     float64
	Labels    []string
}

// NewField returns the Field with these values.
func NewField(id, scope uint32, m *Metric, scale float64, labels ...string) Field {
	return Field{id, scope, m, scale, labels}
}

// ReadFields returns a Read that asks for all fields in one call.
func ReadFields(fields ...Field) Read {
	return func(g *gpu.Device, out *Readings) { out.Fields(g, fields) }
}

// Fields reads fields in one call.
func (r *Readings) Fields(g *gpu.Device, fields []Field) {
	values := make([]nvml.FieldValue, len(fields))
	for i, f := range fields {
		values[i].FieldId, values[i].ScopeId = f.ID, f.Scope
	}
	g.Fields(values)
	for i, f := range fields {
		v, ret := gpu.FieldNumber(values[i])
		if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND {
			ret = nvml.ERROR_NOT_SUPPORTED // the driver does not know the field or scope
		}
		r.Put(f.Metric, Scaled(v, f.Scale), ret, f.Labels...)
	}
}
