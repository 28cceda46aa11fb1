package sim

import (
	"encoding/binary"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// vgpuFirst is the number of the first vGPU instance of a host.
const vgpuFirst = 3251634176

// vgpuInstance is an nvml.VgpuInstance.
type vgpuInstance struct {
	nvml.VgpuInstance
	device *device
	index  int
	spec   scenarios.VGPU
}

// vgpuType is an nvml.VgpuTypeId.
type vgpuType struct {
	nvml.VgpuTypeId
	name string
}

// number is the instance's number in samples.
func (g *gpu) number(index int) uint32 { return vgpuFirst + uint32(16*g.index+index) }

// GetActiveVgpus returns the vGPUs in the scenario's order.
func (d *device) GetActiveVgpus() ([]nvml.VgpuInstance, nvml.Return) {
	return read(d, "nvmlDeviceGetActiveVgpus", func(g *gpu) ([]nvml.VgpuInstance, nvml.Return) {
		if len(g.spec.VGPUs) == 0 {
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		all := make([]nvml.VgpuInstance, len(g.spec.VGPUs))
		for i, spec := range g.spec.VGPUs {
			all[i] = &vgpuInstance{device: d, index: i, spec: spec}
		}
		return all, nvml.SUCCESS
	})
}

// GetVgpuUtilization returns the use by each vGPU during the last second, in
// percent and in the order of GetActiveVgpus; ERROR_NOT_FOUND if there is none
// since lastSeen, in microseconds.
func (d *device) GetVgpuUtilization(lastSeen uint64) (nvml.ValueType, []nvml.VgpuInstanceUtilizationSample,
	nvml.Return) {
	all, ret := read(d, "nvmlDeviceGetVgpuUtilization",
		func(g *gpu) ([]nvml.VgpuInstanceUtilizationSample, nvml.Return) {
			at := g.host.stamp(g.time())
			switch {
			case len(g.spec.VGPUs) == 0:
				return nil, nvml.ERROR_NOT_SUPPORTED
			case at <= lastSeen:
				return nil, nvml.ERROR_NOT_FOUND
			}
			var all []nvml.VgpuInstanceUtilizationSample
			share := 1 / float64(len(g.spec.VGPUs))
			put := func(to *[8]byte, value func(*tick) float64) {
				binary.LittleEndian.PutUint32(to[:], uint32(100*g.average(value)*share+0.5))
			}
			for i := range g.spec.VGPUs {
				s := nvml.VgpuInstanceUtilizationSample{VgpuInstance: g.number(i), TimeStamp: at}
				put(&s.SmUtil, func(t *tick) float64 { return t.busy })
				put(&s.MemUtil, func(t *tick) float64 { return t.mem })
				put(&s.EncUtil, func(t *tick) float64 { return t.enc })
				put(&s.DecUtil, func(t *tick) float64 { return t.dec })
				all = append(all, s)
			}
			return all, nvml.SUCCESS
		})
	return nvml.VALUE_TYPE_UNSIGNED_INT, all, ret
}

// GetVgpuSchedulerState returns equal shares, on a GPU that hosts vGPUs.
func (d *device) GetVgpuSchedulerState() (nvml.VgpuSchedulerGetState, nvml.Return) {
	return read(d, "nvmlDeviceGetVgpuSchedulerState", func(g *gpu) (nvml.VgpuSchedulerGetState, nvml.Return) {
		if len(g.spec.VGPUs) == 0 {
			return nvml.VgpuSchedulerGetState{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.VgpuSchedulerGetState{
			SchedulerPolicy: nvml.VGPU_SCHEDULER_POLICY_EQUAL_SHARE, ArrMode: nvml.VGPU_SCHEDULER_ARR_DISABLE,
		}, nvml.SUCCESS
	})
}

// vgpuRead is read for a call on a vGPU.
func vgpuRead[T any](v *vgpuInstance, call string, value func(g *gpu) T) (T, nvml.Return) {
	return read(v.device, call, func(g *gpu) (T, nvml.Return) { return value(g), nvml.SUCCESS })
}

// ID returns the number by which utilization samples name the instance.
func (v *vgpuInstance) ID() uint32 { return v.device.gpu.number(v.index) }

// String returns the number as fmt prints go-nvml's own instances.
func (v *vgpuInstance) String() string { return strconv.FormatUint(uint64(v.ID()), 10) }

// GetUUID returns a UUID.
func (v *vgpuInstance) GetUUID() (string, nvml.Return) {
	return vgpuRead(v, "nvmlVgpuInstanceGetUUID",
		func(g *gpu) string { return g.uuid("GRID", uint64(v.index)+100)[len("GRID-"):] })
}

// GetVmID returns the scenario's identifier of the virtual machine.
func (v *vgpuInstance) GetVmID() (string, nvml.VgpuVmIdType, nvml.Return) {
	id, ret := vgpuRead(v, "nvmlVgpuInstanceGetVmID", func(*gpu) string { return v.spec.VM })
	return id, nvml.VGPU_VM_ID_UUID, ret
}

// GetType returns the vGPU type.
func (v *vgpuInstance) GetType() (nvml.VgpuTypeId, nvml.Return) {
	return vgpuRead(v, "nvmlVgpuInstanceGetType", func(*gpu) nvml.VgpuTypeId { return &vgpuType{name: v.spec.Type} })
}

// GetName returns the name of the type.
func (t *vgpuType) GetName() (string, nvml.Return) { return t.name, nvml.SUCCESS }

// GetFbUsage returns bytes of framebuffer in use.
func (v *vgpuInstance) GetFbUsage() (uint64, nvml.Return) {
	return vgpuRead(v, "nvmlVgpuInstanceGetFbUsage", func(*gpu) uint64 { return v.spec.Memory << 20 })
}

// GetVmDriverVersion returns the guest's driver version.
func (v *vgpuInstance) GetVmDriverVersion() (string, nvml.Return) {
	return vgpuRead(v, "nvmlVgpuInstanceGetVmDriverVersion", func(g *gpu) string {
		if v.spec.Driver == "" {
			return g.host.scenario.Driver
		}
		return v.spec.Driver
	})
}

// GetLicenseInfo returns the state of the guest's licence.
func (v *vgpuInstance) GetLicenseInfo() (nvml.VgpuLicenseInfo, nvml.Return) {
	return vgpuRead(v, "nvmlVgpuInstanceGetLicenseInfo_v2", func(*gpu) nvml.VgpuLicenseInfo {
		info := nvml.VgpuLicenseInfo{CurrentState: nvml.GRID_LICENSE_STATE_UNLICENSED}
		if v.spec.Licensed {
			info.IsLicensed, info.CurrentState = 1, nvml.GRID_LICENSE_STATE_LICENSED
			info.LicenseExpiry.Status = nvml.GRID_LICENSE_EXPIRY_PERMANENT
		}
		return info
	})
}

// GetEncoderStats returns sessions, frames per second and microseconds.
func (v *vgpuInstance) GetEncoderStats() (sessions int, fps, latency uint32, ret nvml.Return) {
	sessions, ret = vgpuRead(v, "nvmlVgpuInstanceGetEncoderStats", func(*gpu) int { return v.spec.Encoders })
	if sessions > 0 {
		fps, latency = 30, 4800
	}
	return sessions, fps, latency, ret
}
