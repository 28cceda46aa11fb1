package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A VGPU is a virtual GPU that runs on a Device.
type VGPU struct {
	guard
	nv nvml.VgpuInstance
}

// A VGPUType is a VGPU's type.
type VGPUType struct {
	guard
	nv nvml.VgpuTypeId
}

// VGPU returns v, an instance that a Device's call gave, with guarded calls.
func (d *Device) VGPU(v nvml.VgpuInstance) VGPU { return VGPU{d.guard, v} }

// ID returns the driver's number of v, which the driver uses again after v
// has ended.
func (v VGPU) ID() string { return fmt.Sprint(v.nv) }

// Type returns v's type.
func (v VGPU) Type() (VGPUType, nvml.Return) {
	t, ret := v.GetType()
	return VGPUType{v.guard, t}, ret
}
