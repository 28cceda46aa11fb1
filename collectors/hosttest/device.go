package hosttest

import (
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

// ReadDevice returns what a collector shows of a GPU, by series without gpu and uuid.
func ReadDevice(t *testing.T, c string, d nvml.Device) map[string]float64 {
	t.Helper()
	out := &collectors.Readings{Config: new(collectors.Config), Peers: func() []*gpu.Peer { return nil }}
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
