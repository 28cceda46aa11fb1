package gpu

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// EventSet receives the driver's events. It belongs to one goroutine.
type EventSet struct {
	guard
	nv nvml.EventSet
}

// Events returns a set that receives the events of types (a mask) that d can
// raise, and those of them that it can. Closing d frees the set.
func (d *Device) Events(types uint64) (EventSet, uint64, nvml.Return) {
	can, ret := d.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return EventSet{}, 0, ret
	}
	nv, ret := d.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return EventSet{}, 0, ret
	}
	set := EventSet{d.guard, nv}
	d.open[nv] = func() { set.Free() }
	return set, types & can, d.RegisterEvents(types&can, nv)
}
