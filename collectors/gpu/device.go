package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ID is the identity of a GPU.
type ID struct {
	Index int    `json:"index"` // NVML's index, in PCI order
	UUID  string `json:"uuid"`  // "GPU-..."; constant for the life of the board
	PCI   string `json:"pci"`   // "00000000:9B:00.0"
	Minor int    `json:"minor"` // N of /dev/nvidiaN; -1 if the driver does not report it
}

// A Device is a GPU, with each reading call of NVML as a guarded method. It
// belongs to the goroutine that opened it.
type Device struct {
	guard
	ID
	lib       *Library
	nv        nvml.Device
	instances []*MIG
	open      map[any]func() // resources to free in Close
}

// Device opens the GPU with the given NVML index.
func (l *Library) Device(index int) (*Device, error) {
	nv, ret := l.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, Err("nvmlDeviceGetHandleByIndex", ret)
	}
	d := &Device{guard: l.guard, lib: l, nv: nv, ID: ID{Index: index, Minor: -1}, open: map[any]func(){}}
	if d.UUID, ret = d.GetUUID(); ret != nvml.SUCCESS {
		return nil, Err("nvmlDeviceGetUUID", ret)
	}
	if pci, ret := d.GetPciInfo(); ret == nvml.SUCCESS {
		d.PCI = String(pci.BusId[:])
	}
	if minor, ret := d.GetMinorNumber(); ret == nvml.SUCCESS {
		d.Minor = minor
	}
	return d, nil
}

// Close frees every resource of d that was not closed before.
func (d *Device) Close() {
	for _, free := range d.open {
		free()
	}
	clear(d.open)
}

func (d *Device) String() string { return fmt.Sprintf("gpu %d (%s)", d.Index, d.UUID) }

// FabricInfo returns the NVLink fabric's state and health; older drivers have no
// summary of it. go-nvml's own call answers through a handler that only go-nvml can
// implement; a simulated device has the method directly.
func (d *Device) FabricInfo() (info nvml.GpuFabricInfo_v3, ret nvml.Return) {
	if ret = d.enter(callFabricInfo); ret != nvml.SUCCESS {
		return info, ret
	}
	if s, ok := d.nv.(interface {
		FabricInfo() (nvml.GpuFabricInfo_v3, nvml.Return)
	}); ok {
		info, ret = s.FabricInfo()
	} else {
		all := d.nv.GetGpuFabricInfoV()
		if info, ret = all.V3(); ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH || ret == nvml.ERROR_INVALID_ARGUMENT {
			var old nvml.GpuFabricInfo_v2
			old, ret = all.V2()
			info = nvml.GpuFabricInfo_v3{ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId,
				State: old.State, HealthMask: old.HealthMask}
		}
	}
	d.leave(callFabricInfo, ret)
	return info, ret
}

// C2CMode reports whether the GPU uses its C2C links to a Grace CPU. See
// FabricInfo.
func (d *Device) C2CMode() (info nvml.C2cModeInfo_v1, ret nvml.Return) {
	if ret = d.enter(callC2CMode); ret != nvml.SUCCESS {
		return info, ret
	}
	if s, ok := d.nv.(interface {
		C2CMode() (nvml.C2cModeInfo_v1, nvml.Return)
	}); ok {
		info, ret = s.C2CMode()
	} else {
		info, ret = d.nv.GetC2cModeInfoV().V1()
	}
	d.leave(callC2CMode, ret)
	return info, ret
}

// A Peer is a GPU as seen by others: they may only ask for the path to it.
// Immutable.
type Peer struct {
	ID
	nv nvml.Device
}

// Peer returns d for use by the goroutines of other GPUs.
func (d *Device) Peer() *Peer { return &Peer{d.ID, d.nv} }

// CommonAncestor returns the point at which the paths of d and peer meet.
func (d *Device) CommonAncestor(peer *Peer) (nvml.GpuTopologyLevel, nvml.Return) {
	return d.GetTopologyCommonAncestor(peer.nv)
}

// P2P reports whether d can access peer's memory in the given way.
func (d *Device) P2P(peer *Peer, way nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	return d.GetP2PStatus(peer.nv, way)
}

// Temperature returns the temperature of the GPU's core in degrees Celsius,
// from the NVML function that the library has: the older of the two is
// deprecated since CUDA 13.
func (d *Device) Temperature() (float64, nvml.Return) {
	celsius, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	if ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		return float64(celsius), ret
	}
	if ret = d.enter(callTemperature); ret != nvml.SUCCESS {
		return 0, ret
	}
	t, ret := d.nv.GetTemperatureV().V1()
	d.leave(callTemperature, ret)
	return float64(t.Temperature), ret
}
