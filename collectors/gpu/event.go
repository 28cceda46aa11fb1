package gpu

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// EventTypes are the named events of the driver, except XIDs and clock changes.
var EventTypes = map[string]uint64{
	"ecc_sbe":                 nvml.EventTypeSingleBitEccError,
	"ecc_dbe":                 nvml.EventTypeDoubleBitEccError,
	"ecc_sbe_storm":           nvml.EventTypeSingleBitEccErrorStorm,
	"dram_retirement":         nvml.EventTypeDramRetirementEvent,
	"dram_retirement_failure": nvml.EventTypeDramRetirementFailure,
	"poison_nonfatal":         nvml.EventTypeNonFatalPoisonError,
	"poison_fatal":            nvml.EventTypeFatalPoisonError,
	"gpu_unavailable":         nvml.EventTypeGpuUnavailableError,
	"recovery_action":         nvml.EventTypeGpuRecoveryAction,
	"power_source":            nvml.EventTypePowerSourceChange,
	"pstate":                  nvml.EventTypePState,
	"mig_config":              nvml.EventMigConfigChange,
}

// EventSet receives the driver's events. It belongs to one goroutine.
type EventSet struct {
	guard
	nv nvml.EventSet
}

// Events returns a set that receives those events of types (a mask) that d can
// raise, and their mask. Closing d frees the set.
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
