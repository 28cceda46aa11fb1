package gpu

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// AllLinks is the scope of an NVLink field that requests the sum over all
// links.
const AllLinks = math.MaxUint32

// Fields reads NVML fields in one call. Each element of fields has FieldId and
// ScopeId set, and receives its own NvmlReturn and Value. If the whole call
// fails, every element carries its code.
func (d *Device) Fields(fields []nvml.FieldValue) {
	if ret := d.GetFieldValues(fields); ret != nvml.SUCCESS {
		for i := range fields {
			fields[i].NvmlReturn = uint32(ret)
		}
	}
}

// FieldNumber returns a field's value as a number, in the field's own unit.
func FieldNumber(f nvml.FieldValue) (float64, nvml.Return) {
	return Number(nvml.ValueType(f.ValueType), f.Value), nvml.Return(f.NvmlReturn)
}

// Number decodes one of NVML's tagged eight-byte values.
func Number(t nvml.ValueType, b [8]byte) float64 {
	u := binary.NativeEndian.Uint64(b[:])
	switch t {
	case nvml.VALUE_TYPE_DOUBLE:
		return math.Float64frombits(u)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(uint32(u))
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(u))
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(u))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return float64(uint16(u))
	}
	return float64(u) // unsigned long and unsigned long long
}

// String returns a C string up to its terminator.
func String[T int8 | uint8](c []T) string {
	b := make([]byte, 0, len(c))
	for _, x := range c {
		if x == 0 {
			break
		}
		b = append(b, byte(x))
	}
	return string(b)
}
