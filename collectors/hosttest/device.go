package hosttest

import (
	"fmt"
	"maps"
	"slices"
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

// Open returns the only GPU of a driver.
func Open(t *testing.T, d nvml.Device) *gpu.Device {
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

// ReadDevice returns what the collector c shows of a GPU: "name{labels} value", sorted.
func ReadDevice(t *testing.T, c string, d nvml.Device) (all []string) {
	t.Helper()
	out := &collectors.Readings{Config: new(collectors.Config)}
	for _, of := range collectors.All() {
		if of.Name == c {
			of.Read(Open(t, d), out)
		}
	}
	for i := range out.Samples {
		s := &out.Samples[i]
		series := *s.Metric
		series.Labels = series.Labels[len(series.Labels)-len(s.Labels):] // without gpu and uuid
		s.Metric = &series
	}
	shown := Series(out.Samples)
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		all = append(all, fmt.Sprint(name, " ", shown[name]))
	}
	return all
}
