package hosttest

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/internal/fixture"
)

// Mock returns a driver's GPU that answers what a test lets it answer.
func Mock() *mock.Device {
	return &mock.Device{
		GetUUIDFunc:        func() (string, nvml.Return) { return "GPU-a", nvml.SUCCESS },
		GetPciInfoFunc:     func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED },
		GetMinorNumberFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
	}
}

// Numbers are numbers that a driver answers, each once, by what was asked.
type Numbers map[string]int

// Of returns the number of an answer.
func (n Numbers) Of(what string) int {
	if _, known := n[what]; !known {
		n[what] = 1001 + len(n)
	}
	return n[what]
}

// fill puts numbers into an answer.
func (n Numbers) fill(v reflect.Value, what string) {
	switch {
	case v.Type() == reflect.TypeFor[nvml.Return]():
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			n.fill(v.Field(i), what+"."+v.Type().Field(i).Name)
		}
	case v.CanUint() && v.Type().Bits() >= 16:
		v.SetUint(uint64(n.Of(what)))
	case v.CanInt() && v.Type().Bits() >= 16:
		v.SetInt(int64(n.Of(what)))
	case v.Type() == reflect.TypeFor[[]uint64]():
		v.Set(reflect.MakeSlice(v.Type(), n.Of(what), n.Of(what)))
	case v.Kind() == reflect.String:
		v.SetString(what)
	}
}

// Name returns what a value was asked for by: a number may be in thousandths, percent and the like.
func (n Numbers) Name(v float64) string {
	for what, number := range n {
		for _, unit := range []float64{1, 1e-9, 1e-6, 1e-3, 1e-2, 1e6, 1 << 10, 1 << 20} {
			if math.Abs(v/unit-float64(number)) < 1e-6 {
				return fmt.Sprintf("%s\t%g", what, unit)
			}
		}
	}
	return fmt.Sprintf("%.4g", v)
}

// Numbered returns a driver's GPU that answers each question with a number of its own.
func Numbered() (Numbers, *mock.Device) {
	n, d := Numbers{}, Mock()
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
	return n, d
}

// Open returns the only GPU of a driver.
func Open(t testing.TB, d nvml.Device) *gpu.Device {
	t.Helper()
	lib := fixture.Value(gpu.Open(&mock.Interface{
		InitFunc: func() nvml.Return { return nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
		},
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS },
	}, new(gpu.Calls), new(gpu.Caller)))(t)
	return fixture.Value(lib.Device(0))(t)
}

// ReadDevice returns what a collector shows of a GPU, by series without gpu and uuid.
func ReadDevice(t *testing.T, c string, d nvml.Device) map[string]float64 {
	t.Helper()
	out := &collectors.Readings{Config: &collectors.Config{PerLink: true}, Peers: func() []*gpu.Peer { return nil }}
	for _, of := range collectors.All() {
		if of.Name == c {
			of.Read(Open(t, d), out)
		}
	}
	for i, s := range out.Samples {
		m := *s.Metric
		m.Labels = m.Labels[len(m.Labels)-len(s.Labels):]
		out.Samples[i].Metric = &m
	}
	return Series(out.Samples)
}
