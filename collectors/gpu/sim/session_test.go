package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// TestSessions checks that calls need a session and that handles end with it.
func TestSessions(t *testing.T) {
	h, err := New(scenarios.Scenario{GPUs: []scenarios.GPU{{}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
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
		if waited := time.Since(start); waited != 20*time.Second {
			t.Errorf("waited %v, want 20s", waited)
		}
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
		if mj := must[uint64](t)(d.GetTotalEnergyConsumption()); mj > 2*700*1000 {
			t.Errorf("energy since the driver was loaded is %d mJ", mj)
		}
		time.Sleep(3 * time.Minute)
		_, ret = d.GetName()
		want(t, "after the second time", ret, nvml.ERROR_UNINITIALIZED)
		check(t, h.Init())
		must[string](t)(gpuOf(t, h, 0).GetName())
	})
}

// TestSystem checks the calls about the driver.
func TestSystem(t *testing.T) {
	h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}},
		MissingSymbols: []string{"nvmlDeviceGetOfaUtilization"}}, Options{})
	if v := must[string](t)(h.SystemGetDriverVersion()); v != "580.159.04" {
		t.Errorf("driver is %s", v)
	}
	if v := must[int](t)(h.SystemGetCudaDriverVersion_v2()); v != 13000 {
		t.Errorf("CUDA is %d", v)
	}
	if v := must[string](t)(h.SystemGetNVMLVersion()); v != "13.580.159.04" {
		t.Errorf("NVML is %s", v)
	}
	branch := must[nvml.SystemDriverBranchInfo](t)(h.SystemGetDriverBranch())
	if branch.Branch[0] != 'r' || branch.Branch[1] != '5' {
		t.Errorf("branch is %v", branch.Branch)
	}
	if s := h.ErrorString(nvml.ERROR_NOT_FOUND); s != "ERROR_NOT_FOUND" {
		t.Errorf("error is %q", s)
	}
	if v := must[uint32](t)(h.SystemGetConfComputeGpusReadyState()); v != 0 {
		t.Errorf("ready state is %d", v)
	}
	if v := must[nvml.ConfComputeSystemState](t)(h.SystemGetConfComputeState()); v != (nvml.ConfComputeSystemState{}) {
		t.Errorf("confidential computing is %+v", v)
	}
	_, ret := h.SystemGetConfComputeKeyRotationThresholdInfo()
	want(t, "key rotation", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = h.SystemGetProcessName(1)
	want(t, "name of no process", ret, nvml.ERROR_NOT_FOUND)
	if err := h.Extensions().LookupSymbol("nvmlInit_v2"); err != nil {
		t.Error(err)
	}
	if err := h.Extensions().LookupSymbol("nvmlDeviceGetOfaUtilization"); err == nil {
		t.Error("the missing symbol was found")
	}
	defer func() {
		if recover() == nil {
			t.Error("a missing function does not panic")
		}
	}()
	gpuOf(t, h, 0).GetOfaUtilization()
}

// TestNodesGone checks that handles outlive their device nodes.
func TestNodesGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Count: 2}},
			Faults: []scenarios.Fault{{Kind: "nodes_gone", At: scenarios.Duration(10 * time.Second),
				For: scenarios.Duration(20 * time.Second)}}},
			Options{})
		all := []*device{gpuOf(t, h, 0), gpuOf(t, h, 1)}
		time.Sleep(10 * time.Second)
		for _, d := range all {
			_, ret := d.GetName()
			want(t, "a device", ret, nvml.ERROR_UNKNOWN)
		}
		want(t, "Init", h.Init(), nvml.ERROR_UNKNOWN)
		time.Sleep(20 * time.Second)
		for _, d := range all {
			must[string](t)(d.GetName())
		}
	})
}

// TestLibraryMismatch checks that sessions end with a change of the driver.
func TestLibraryMismatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}},
			Faults: []scenarios.Fault{{Kind: "library_mismatch", At: scenarios.Duration(10 * time.Second),
				For: scenarios.Duration(20 * time.Second)}}}, Options{})
		d := gpuOf(t, h, 0)
		set := subscribe(t, h)
		_, ret := set.Wait(60_000)
		want(t, "waiting for events", ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH)
		_, ret = d.GetName()
		want(t, "a device", ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH)
		_, ret = h.DeviceGetCount()
		want(t, "the host", ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH)
		want(t, "Init", h.Init(), nvml.ERROR_LIB_RM_VERSION_MISMATCH)
		check(t, h.Shutdown())
		time.Sleep(20 * time.Second)
		check(t, h.Init())
		_, ret = d.GetName()
		want(t, "a handle of before", ret, nvml.ERROR_UNINITIALIZED)
		must[string](t)(gpuOf(t, h, 0).GetName())
	})
}

// TestRecovery runs the scenario recovery, and reopens NVML after the end of
// each session.
func TestRecovery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "recovery"), Options{})
		// seconds, GPU that does not answer
		lost := map[time.Duration]int{60: 1, 100: 2, 140: 0, 180: 1, 220: 0, 260: 2}
		for at := time.Duration(10); at < 300; at += 20 {
			time.Sleep(at*time.Second - time.Since(h.start))
			if at == 30 {
				start := time.Now()
				must[uint32](t)(gpuOf(t, h, 0).GetPowerUsage())
				if d := time.Since(start); d != 10*time.Second {
					t.Errorf("the wedge lasts %v, want 10s", d)
				}
				continue
			}
			if gpu, struck := lost[at-10]; struck {
				if d, ret := h.DeviceGetHandleByIndex(gpu); ret == nvml.SUCCESS {
					if _, ret = d.GetPowerUsage(); ret == nvml.SUCCESS && at != 190 {
						t.Errorf("GPU %d answers at %d s", gpu, at)
					}
				}
				if n, ret := h.DeviceGetCount(); at == 190 && (n != 2 || ret != nvml.SUCCESS) {
					t.Errorf("%d GPUs of which one is removed, %v", n, ret)
				}
				continue
			}
			if _, ret := h.DeviceGetCount(); ret != nvml.SUCCESS {
				check(t, h.Init())
			}
			for i := range 3 {
				must[uint32](t)(gpuOf(t, h, i).GetPowerUsage())
			}
		}
	})
}
