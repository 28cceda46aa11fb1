package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A VGPU is a virtual GPU on a Device.
type VGPU struct {
	guard
	nv nvml.VgpuInstance
}

// A VGPUType is the type of a VGPU.
type VGPUType struct {
	guard
	nv nvml.VgpuTypeId
}

// VGPU returns v, an instance from a Device's call, with guarded calls.
func (d *Device) VGPU(v nvml.VgpuInstance) VGPU { return VGPU{d.guard, v} }

// ID returns the driver's number of v, which the driver reuses after v has
// ended.
func (v VGPU) ID() string { return fmt.Sprint(v.nv) }

// Type returns the type of v.
func (v VGPU) Type() (VGPUType, nvml.Return) {
	t, ret := v.GetType()
	return VGPUType{v.guard, t}, ret
}
