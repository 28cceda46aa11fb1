package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
)

// TestSessions checks that calls need a session and that handles end with it.
func TestSessions(t *testing.T) {
	h := fixture.Value(New(scenarios.Scenario{GPUs: []scenarios.GPU{{}}}, Options{}))(t)
	_, ret := h.DeviceGetCount()
	want(t, "before Init", ret, nvml.ERROR_UNINITIALIZED)
	want(t, "Shutdown before Init", h.Shutdown(), nvml.ERROR_UNINITIALIZED)
	check(t, h.Init())
	check(t, h.Init())
	d := gpuOf(t, h, 0)
	check(t, h.Shutdown())
	must[string](t)(d.GetName())
	check(t, h.Shutdown())
	_, ret = d.GetName()
	want(t, "after Shutdown", ret, nvml.ERROR_UNINITIALIZED)
	check(t, h.Init())
	_, ret = d.GetName()
	want(t, "old handle in a new session", ret, nvml.ERROR_UNINITIALIZED)
	must[string](t)(gpuOf(t, h, 0).GetName())
	_, ret = h.DeviceGetHandleByIndex(1)
	want(t, "index out of range", ret, nvml.ERROR_INVALID_ARGUMENT)
}

// TestDriverGone checks that sessions end with the driver.
func TestDriverGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "driver_gone"), Options{})
		d := gpuOf(t, h, 0)
		set := must[nvml.EventSet](t)(h.EventSetCreate())
		check(t, d.RegisterEvents(nvml.EventTypeXidCriticalError, set))
		start := time.Now()
		_, ret := set.Wait(60_000)
		want(t, "waiting for events", ret, nvml.ERROR_UNINITIALIZED)
		fixture.Equal(t, time.Since(start), 20*time.Second, "waited")
		_, ret = d.GetName()
		want(t, "a device", ret, nvml.ERROR_UNINITIALIZED)
		_, ret = h.DeviceGetCount()
		want(t, "the host", ret, nvml.ERROR_UNINITIALIZED)
		_, ret = h.SystemGetDriverVersion()
		want(t, "the driver", ret, nvml.ERROR_UNINITIALIZED)
		want(t, "Init", h.Init(), nvml.ERROR_DRIVER_NOT_LOADED)
		time.Sleep(31 * time.Second)
		_, ret = d.GetName()
		want(t, "a handle of before", ret, nvml.ERROR_UNINITIALIZED)
		_, ret = h.DeviceGetCount()
		want(t, "the host before Init", ret, nvml.ERROR_UNINITIALIZED)
		check(t, h.Init())
		_, ret = d.GetName()
		want(t, "a handle of before, after Init", ret, nvml.ERROR_UNINITIALIZED)
		d = gpuOf(t, h, 0)
		fixture.AtMost(t, must[uint64](t)(d.GetTotalEnergyConsumption()), 2*700*1000,
			"energy since the driver was loaded is … mJ")
		time.Sleep(3 * time.Minute)
		_, ret = d.GetName()
		want(t, "after the second time", ret, nvml.ERROR_UNINITIALIZED)
		check(t, h.Init())
		must[string](t)(gpuOf(t, h, 0).GetName())
	})
}
