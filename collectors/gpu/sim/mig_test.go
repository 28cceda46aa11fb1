package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// migOf returns the MIG devices of a GPU.
func migOf(t testing.TB, d *device) []*migDevice {
	t.Helper()
	var all []*migDevice
	for i := range must[int](t)(d.GetMaxMigDeviceCount()) {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			break
		}
		check(t, ret)
		all = append(all, m.(*migDevice))
	}
	return all
}

// TestMIGParent checks the calls that a GPU refuses under MIG.
func TestMIGParent(t *testing.T) {
	h := begin(t, embedded(t, "mig"), Options{})
	d := gpuOf(t, h, 0)
	current, pending, ret := d.GetMigMode()
	check(t, ret)
	if current != 1 || pending != 1 {
		t.Errorf("MIG mode is %d, %d", current, pending)
	}
	_, ret = d.GetUtilizationRates()
	want(t, "utilization", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetProcessUtilization(0)
	want(t, "process utilization", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetRemappedRows_v2()
	want(t, "remapped rows", ret, nvml.ERROR_NOT_SUPPORTED)
	_, _, ret = d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, 0)
	want(t, "utilization samples", ret, nvml.ERROR_NOT_SUPPORTED)
	_, _, ret = d.GetSamples(nvml.TOTAL_POWER_SAMPLES, 0)
	check(t, ret)
	_, ret = d.GetMigDeviceHandleByIndex(7)
	want(t, "an eighth device", ret, nvml.ERROR_INVALID_ARGUMENT)
	if yes := must[bool](t)(d.IsMigDeviceHandle()); yes {
		t.Error("the GPU is a MIG device")
	}
	_, ret = gpuOf(t, begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}}}, Options{}), 0).GetMigDeviceHandleByIndex(0)
	want(t, "without MIG", ret, nvml.ERROR_NOT_SUPPORTED)
}

// TestMIGDevices checks identity, attributes, memory and processes.
func TestMIGDevices(t *testing.T) {
	h := begin(t, embedded(t, "mig"), Options{})
	uuids := map[string]bool{}
	for i := range must[int](t)(h.DeviceGetCount()) {
		d := gpuOf(t, h, i)
		all := migOf(t, d)
		if len(all) != len(d.gpu.spec.MIG) {
			t.Errorf("GPU %d has %d MIG devices, want %d", i, len(all), len(d.gpu.spec.MIG))
		}
		ids, memory, used := map[int]bool{}, uint64(0), uint64(0)
		for j, m := range all {
			name := must[string](t)(m.GetName())
			if wanted := d.gpu.model.Name + " MIG " + d.gpu.spec.MIG[j]; name != wanted {
				t.Errorf("name is %q, want %q", name, wanted)
			}
			uuid := must[string](t)(m.GetUUID())
			if !strings.HasPrefix(uuid, "MIG-") || uuids[uuid] {
				t.Errorf("UUID is %q", uuid)
			}
			uuids[uuid] = true
			gi := must[int](t)(m.GetGpuInstanceId())
			if ids[gi] {
				t.Errorf("GPU instance %d is listed twice", gi)
			}
			ids[gi] = true
			memory += checkMIG(t, m, j, gi)
			used += must[nvml.Memory_v2](t)(m.GetMemoryInfo_v2()).Used
		}
		whole := must[nvml.Memory_v2](t)(d.GetMemoryInfo_v2())
		if memory > whole.Total || used != whole.Used {
			t.Errorf("GPU %d: instances hold %d and use %d of %+v", i, memory, used, whole)
		}
	}
}

func checkMIG(t *testing.T, m *migDevice, index, gi int) (total uint64) {
	t.Helper()
	if yes := must[bool](t)(m.IsMigDeviceHandle()); !yes || must[int](t)(m.GetIndex()) != index ||
		must[int](t)(m.GetComputeInstanceId()) != 0 {
		t.Error("the handle is not that of a MIG device")
	}
	parent := must[nvml.Device](t)(m.GetDeviceHandleFromMigDeviceHandle())
	info := must[nvml.GpuInstanceInfo](t)(must[nvml.GpuInstance](t)(parent.GetGpuInstanceById(gi)).GetInfo())
	if int(info.Id) != gi || info.ProfileId != m.profile.ID || info.Placement.Size != m.profile.MemorySlices ||
		info.Placement.Start+info.Placement.Size > 8 {
		t.Errorf("instance is %+v", info)
	}
	a := must[nvml.DeviceAttributes](t)(m.GetAttributes())
	if a.GpuInstanceSliceCount != m.profile.Slices || a.MultiprocessorCount != m.profile.SMs ||
		a.MemorySizeMB != m.profile.MemoryMiB {
		t.Errorf("attributes are %+v", a)
	}
	v := must[nvml.Memory_v2](t)(m.GetMemoryInfo_v2())
	v1 := must[nvml.Memory](t)(m.GetMemoryInfo())
	if v.Used+v.Free+v.Reserved != v.Total || v.Free > v.Total || v1.Used != v.Used+v.Reserved || v1.Total != v.Total {
		t.Errorf("memory is %+v and %+v", v, v1)
	}
	b := must[nvml.BAR1Memory](t)(m.GetBAR1MemoryInfo())
	if b.Bar1Used+b.Bar1Free != b.Bar1Total {
		t.Errorf("BAR1 is %+v", b)
	}
	procs := must[[]nvml.ProcessInfo](t)(m.GetComputeRunningProcesses())
	if len(procs) != 1 || int(procs[0].GpuInstanceId) != gi || procs[0].ComputeInstanceId != 0 {
		t.Errorf("processes are %+v", procs)
	}
	if list := must[nvml.ProcessDetailList](t)(m.GetRunningProcessDetailList()); list.NumProcArrayEntries != 1 ||
		list.ProcArray.Pid != procs[0].Pid {
		t.Errorf("details are %+v", list)
	}
	if n := len(must[[]nvml.ProcessInfo](t)(m.GetGraphicsRunningProcesses())) +
		len(must[[]nvml.ProcessInfo](t)(m.GetMPSComputeRunningProcesses())); n > 0 {
		t.Errorf("%d other processes", n)
	}
	if current, _, ret := m.GetEccMode(); ret != nvml.SUCCESS || current != nvml.FEATURE_ENABLED {
		t.Errorf("ECC mode is %v, %v", current, ret)
	}
	_, ret := m.GetPowerUsage()
	want(t, "power of a MIG device", ret, nvml.ERROR_NOT_SUPPORTED)
	return v.Total
}

// TestMIGErrors checks that a GPU's errors go to its first MIG device.
func TestMIGErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := embedded(t, "mig")
		s.Faults = []scenarios.Fault{{Kind: "ecc", Severity: "corrected", Location: "dram", Count: 3,
			At: scenarios.Duration(time.Second)}}
		all := migOf(t, gpuOf(t, begin(t, s, Options{}), 0))
		time.Sleep(time.Second)
		for i, m := range all {
			wanted := uint64(0)
			if i == 0 {
				wanted = 3
			}
			total := must[uint64](t)(m.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC))
			dram := must[uint64](t)(m.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC,
				nvml.MEMORY_LOCATION_DRAM))
			if total != wanted || dram != wanted {
				t.Errorf("device %d has %d and %d errors, want %d", i, total, dram, wanted)
			}
		}
	})
}

// TestMIGMetrics reads GPM of GPU instances.
func TestMIGMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "mig"), Options{})
		d := gpuOf(t, h, 3)
		gi := must[int](t)(migOf(t, d)[0].GetGpuInstanceId())
		from, to := must[nvml.GpmSample](t)(h.GpmSampleAlloc()), must[nvml.GpmSample](t)(h.GpmSampleAlloc())
		check(t, from.MigGet(d, gi))
		time.Sleep(2 * time.Second)
		check(t, to.MigGet(d, gi))
		all := metrics(t, h, from, to, 2, 5, 20)
		if all[2] < 30 || all[2] > 100 || all[5] > all[2] || all[20] <= 0 {
			t.Errorf("metrics are %v", all)
		}
		want(t, "no such instance", from.MigGet(d, 99), nvml.ERROR_INVALID_ARGUMENT)
		want(t, "a model without", from.MigGet(gpuOf(t, h, 2), 7), nvml.ERROR_NOT_SUPPORTED)
		check(t, from.Free())
	})
}
