package sim

import (
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/stub"
)

// overridden lists the methods of a device that are simulated.
func overridden(t *testing.T) []reflect.Method {
	t.Helper()
	var all []reflect.Method
	ours := reflect.TypeFor[*device]()
	none := reflect.TypeFor[stub.Device]()
	for i := range ours.NumMethod() {
		m := ours.Method(i)
		if _, ok := none.MethodByName(m.Name); ok && m.Type.NumIn() == 1 {
			all = append(all, m)
		}
	}
	return all
}

// TestEveryModelAnswers calls every getter without arguments on every model:
// none fails in a way that NVML would not.
func TestEveryModelAnswers(t *testing.T) {
	h := begin(t, embedded(t, "models"), Options{})
	for i := range must[int](t)(h.DeviceGetCount()) {
		d := gpuOf(t, h, i)
		answers := 0
		for _, m := range overridden(t) {
			if strings.HasPrefix(m.Name, "Set") {
				continue
			}
			out := m.Func.Call([]reflect.Value{reflect.ValueOf(d)})
			ret, ok := out[len(out)-1].Interface().(nvml.Return)
			if !ok {
				continue
			}
			switch ret {
			case nvml.SUCCESS:
				answers++
			case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_DEPRECATED:
			default:
				t.Errorf("%s %s: %v", d.gpu.spec.Model, m.Name, ret)
			}
		}
		if answers < 60 {
			t.Errorf("%s answers only %d calls", d.gpu.spec.Model, answers)
		}
	}
}
