package gpu

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// A MIG is one MIG device: a compute instance within a GPU instance. Its calls
// belong to the goroutine of its parent.
type MIG struct {
	Device
	GI, CI int
}

// Instances returns the MIG devices that the last RefreshInstances found.
func (d *Device) Instances() []*MIG { return d.instances }

// RefreshInstances reads the MIG topology again. A GPU without MIG, or with MIG
// off, has no instances, which is not a failure.
func (d *Device) RefreshInstances() nvml.Return {
	mode, _, ret := d.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		d.instances = nil
		return ret
	}
	most, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return ret
	}
	var found []*MIG
	for i := range most {
		nv, ret := d.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return ret
		}
		m := &MIG{Device: Device{guard: d.guard, lib: d.lib, nv: nv, ID: d.ID}}
		if m.UUID, ret = m.GetUUID(); ret != nvml.SUCCESS {
			return ret
		}
		if m.GI, ret = m.GetGpuInstanceId(); ret != nvml.SUCCESS {
			return ret
		}
		if m.CI, ret = m.GetComputeInstanceId(); ret != nvml.SUCCESS {
			return ret
		}
		found = append(found, m)
	}
	d.instances = found
	return nvml.SUCCESS
}

// NoInstance is NVML's number for no MIG instance.
const NoInstance = 0xFFFFFFFF

// Instance is a MIG GPU instance.
type Instance struct {
	guard
	nv nvml.GpuInstance
}

// Instance opens the GPU instance gi of d.
func (d *Device) Instance(gi int) (Instance, nvml.Return) {
	nv, ret := d.GetGpuInstanceById(gi)
	return Instance{d.guard, nv}, ret
}
