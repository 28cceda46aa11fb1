package collectors_test

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// numbered are numbers that a driver answers, each once, by what was asked.
type numbered map[string]int

// of returns the number of an answer.
func (n numbered) of(what string) int {
	if _, known := n[what]; !known {
		n[what] = 1001 + len(n)
	}
	return n[what]
}

// fill puts numbers into an answer.
func (n numbered) fill(v reflect.Value, what string) {
	switch {
	case v.Type() == reflect.TypeFor[nvml.Return]():
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			n.fill(v.Field(i), what+"."+v.Type().Field(i).Name)
		}
	case v.CanUint() && v.Type().Bits() >= 16:
		v.SetUint(uint64(n.of(what)))
	case v.CanInt() && v.Type().Bits() >= 16:
		v.SetInt(int64(n.of(what)))
	case v.Type() == reflect.TypeFor[[]uint64]():
		v.Set(reflect.MakeSlice(v.Type(), n.of(what), n.of(what)))
	case v.Kind() == reflect.String:
		v.SetString(what)
	}
}

// named returns what a value was asked for by: a number may be in thousandths, percent and the like.
func (n numbered) named(v float64) string {
	for what, number := range n {
		for _, unit := range []float64{1, 1e-9, 1e-6, 1e-3, 1e-2, 1e6, 1 << 10, 1 << 20} {
			if math.Abs(v/unit-float64(number)) < 1e-6 {
				return fmt.Sprintf("%s\t%g", what, unit)
			}
		}
	}
	return fmt.Sprintf("%.4g", v)
}

// TestGoldenSources compares with a table which answer of the driver each series has, and in which unit: the driver
// answers each question with a number of its own.
func TestGoldenSources(t *testing.T) {
	n, out := numbered{}, new(strings.Builder)
	out.WriteString("series\tanswer\tunit\n")
	d := hosttest.Mock()
	for of, call := range reflect.ValueOf(d).Elem().Fields() {
		if call.Kind() != reflect.Func || !call.IsNil() {
			continue
		}
		name := strings.TrimSuffix(of.Name, "Func")
		call.Set(reflect.MakeFunc(call.Type(), func(args []reflect.Value) (answers []reflect.Value) {
			what := name
			for _, a := range args {
				if a.CanInt() || a.CanUint() {
					what += fmt.Sprint(" ", a)
				}
			}
			for i := range call.Type().NumOut() {
				v := reflect.New(call.Type().Out(i)).Elem()
				n.fill(v, what+map[bool]string{true: fmt.Sprint(" #", i)}[i > 0])
				answers = append(answers, v)
			}
			return answers
		}))
	}
	d.GetNumFansFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_ENABLED, []nvml.Return{0, nvml.ERROR_NOT_SUPPORTED, 0, nvml.ERROR_INVALID_ARGUMENT}[min(link, 3)]
	}
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS }
	d.GetGpuInstanceByIdFunc = func(int) (nvml.GpuInstance, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	d.GetSupportedClocksEventReasonsFunc = func() (uint64, nvml.Return) { return ^uint64(nvml.ClocksEventReasonGpuIdle), nvml.SUCCESS }
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) {
		return nvml.ClocksThrottleReasonHwPowerBrakeSlowdown | nvml.ClocksEventReasonSwThermalSlowdown, nvml.SUCCESS
	}
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			number := n.of(fmt.Sprint("field ", values[i].FieldId, " of ", values[i].ScopeId))
			if values[i].FieldId == nvml.FI_DEV_C2C_LINK_COUNT {
				number = 1
			}
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			values[i].Value[0], values[i].Value[1] = byte(number), byte(number>>8)
		}
		return nvml.SUCCESS
	}
	for _, c := range collectors.All() {
		if c.Read == nil {
			continue
		}
		shown := hosttest.ReadDevice(t, c.Name, d)
		for _, series := range slices.Sorted(maps.Keys(shown)) {
			fmt.Fprintf(out, "%s\t%s\n", series, n.named(shown[series]))
		}
	}
	fixture.Golden(t, "testdata/sources.tsv", out.String())
}
