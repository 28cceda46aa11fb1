package sim

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestVGPUs reads the vGPUs of an L4.
func TestVGPUs(t *testing.T) {
	h := begin(t, embedded(t, "vgpu"), Options{Seed: 2})
	d := gpuOf(t, h, 0)
	mode := must[nvml.GpuVirtualizationMode](t)(d.GetVirtualizationMode())
	if mode != nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU {
		t.Errorf("mode is %v", mode)
	}
	if mode := must[nvml.HostVgpuMode](t)(d.GetHostVgpuMode()); mode != nvml.HOST_VGPU_MODE_SRIOV {
		t.Errorf("host mode is %v", mode)
	}
	s := must[nvml.VgpuSchedulerGetState](t)(d.GetVgpuSchedulerState())
	if s.SchedulerPolicy != nvml.VGPU_SCHEDULER_POLICY_EQUAL_SHARE {
		t.Errorf("scheduler is %+v", s)
	}
	all := must[[]nvml.VgpuInstance](t)(d.GetActiveVgpus())
	if len(all) != 2 {
		t.Fatalf("%d vGPUs", len(all))
	}
	used := uint64(0)
	for i, v := range all {
		spec := d.gpu.spec.VGPUs[i]
		vm, _, ret := v.GetVmID()
		check(t, ret)
		kind := must[string](t)(must[nvml.VgpuTypeId](t)(v.GetType()).GetName())
		driver := must[string](t)(v.GetVmDriverVersion())
		if vm != spec.VM || kind != spec.Type || driver != spec.Driver || len(must[string](t)(v.GetUUID())) != 36 {
			t.Errorf("vGPU %d is %q of type %q with driver %q", i, vm, kind, driver)
		}
		licence := must[nvml.VgpuLicenseInfo](t)(v.GetLicenseInfo())
		if (licence.IsLicensed == 1) != spec.Licensed ||
			(licence.CurrentState == nvml.GRID_LICENSE_STATE_LICENSED) != spec.Licensed {
			t.Errorf("licence is %+v", licence)
		}
		sessions, fps, _, ret := v.GetEncoderStats()
		check(t, ret)
		if sessions != spec.Encoders || fps > 0 != (sessions > 0) {
			t.Errorf("%d encoder sessions at %d frames per second", sessions, fps)
		}
		used += must[uint64](t)(v.GetFbUsage())
	}
	if m := must[nvml.Memory_v2](t)(d.GetMemoryInfo_v2()); m.Used != used {
		t.Errorf("the GPU uses %d bytes, its vGPUs %d", m.Used, used)
	}
	_, samples, ret := d.GetVgpuUtilization(0)
	check(t, ret)
	if len(samples) != 2 || samples[0].VgpuInstance != all[0].(*vgpuInstance).ID() ||
		binary.LittleEndian.Uint32(samples[0].SmUtil[:]) > 50 {
		t.Errorf("samples are %+v", samples)
	}
	if got, wanted := fmt.Sprint(all[1]), fmt.Sprint(samples[1].VgpuInstance); got != wanted {
		t.Errorf("the instance is printed as %s, but its samples have %s", got, wanted)
	}
	_, _, ret = d.GetVgpuUtilization(samples[0].TimeStamp)
	want(t, "nothing since", ret, nvml.ERROR_NOT_FOUND)
	_, ret = gpuOf(t, h, 1).GetActiveVgpus()
	want(t, "a GPU without", ret, nvml.ERROR_NOT_SUPPORTED)
}
