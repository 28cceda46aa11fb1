package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
)

// frequency returns the current frequency of a clock in MHz.
func (g *gpu) frequency(kind nvml.ClockType) (uint32, nvml.Return) {
	switch c := g.model.Clock; kind {
	case nvml.CLOCK_GRAPHICS, nvml.CLOCK_SM:
		return uint32(g.clock), nvml.SUCCESS
	case nvml.CLOCK_MEM:
		if g.hot == 0 {
			return uint32(c.MemoryIdle), nvml.SUCCESS
		}
		return uint32(c.Memory), nvml.SUCCESS
	case nvml.CLOCK_VIDEO:
		if g.hot == 0 {
			return uint32(min(max(g.clock-c.Step, c.IdleLow), c.VideoMax)), nvml.SUCCESS
		}
		return uint32(min(g.clock+c.Step, c.VideoMax)), nvml.SUCCESS
	}
	return 0, nvml.ERROR_INVALID_ARGUMENT
}

// highest returns the maximum frequency of a clock in MHz.
func highest(m *models.Model, kind nvml.ClockType) (uint32, nvml.Return) {
	switch kind {
	case nvml.CLOCK_GRAPHICS, nvml.CLOCK_SM:
		return uint32(m.Clock.Max), nvml.SUCCESS
	case nvml.CLOCK_MEM:
		return uint32(m.Clock.Memory), nvml.SUCCESS
	case nvml.CLOCK_VIDEO:
		return uint32(m.Clock.VideoMax), nvml.SUCCESS
	}
	return 0, nvml.ERROR_INVALID_ARGUMENT
}

// GetClockInfo returns the current frequency in MHz.
func (d *device) GetClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetClockInfo", func(g *gpu) (uint32, nvml.Return) { return g.frequency(kind) })
}

// GetMaxClockInfo returns the maximum frequency in MHz.
func (d *device) GetMaxClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetMaxClockInfo", func(g *gpu) (uint32, nvml.Return) { return highest(g.model, kind) })
}

// GetClock returns a frequency in MHz.
func (d *device) GetClock(kind nvml.ClockType, id nvml.ClockId) (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetClock", func(g *gpu) (uint32, nvml.Return) {
		switch id {
		case nvml.CLOCK_ID_CURRENT:
			return g.frequency(kind)
		case nvml.CLOCK_ID_CUSTOMER_BOOST_MAX:
			return boost(g.model, kind)
		case nvml.CLOCK_ID_APP_CLOCK_TARGET, nvml.CLOCK_ID_APP_CLOCK_DEFAULT:
			return application(g.model, kind)
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	})
}

func application(m *models.Model, kind nvml.ClockType) (uint32, nvml.Return) {
	if kind == nvml.CLOCK_VIDEO {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return highest(m, kind)
}

func boost(m *models.Model, kind nvml.ClockType) (uint32, nvml.Return) {
	if kind != nvml.CLOCK_GRAPHICS && kind != nvml.CLOCK_SM {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return highest(m, kind)
}

// GetMaxCustomerBoostClock returns MHz.
func (d *device) GetMaxCustomerBoostClock(kind nvml.ClockType) (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetMaxCustomerBoostClock",
		func(g *gpu) (uint32, nvml.Return) { return boost(g.model, kind) })
}

// GetCurrentClocksEventReasons returns a mask of nvml.ClocksEventReason*.
func (d *device) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return read(d, "nvmlDeviceGetCurrentClocksEventReasons",
		func(g *gpu) (uint64, nvml.Return) { return g.reasons, nvml.SUCCESS })
}

// GetSupportedClocksEventReasons returns the mask of all reasons.
func (d *device) GetSupportedClocksEventReasons() (uint64, nvml.Return) {
	return fixed(d, "nvmlDeviceGetSupportedClocksEventReasons",
		func(*models.Model) uint64 { return nvml.ClocksEventReasonAll })
}

// GetPerformanceState returns P0 under load, otherwise the model's idle state.
func (d *device) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return read(d, "nvmlDeviceGetPerformanceState", func(g *gpu) (nvml.Pstates, nvml.Return) {
		if g.hot == 0 {
			return nvml.Pstates(g.model.IdlePState), nvml.SUCCESS
		}
		return nvml.PSTATE_0, nvml.SUCCESS
	})
}

// GetAutoBoostedClocksEnabled is not supported since Pascal.
func (d *device) GetAutoBoostedClocksEnabled() (nvml.EnableState, nvml.EnableState, nvml.Return) {
	ret := d.ask("nvmlDeviceGetAutoBoostedClocksEnabled", func(*gpu) nvml.Return { return nvml.ERROR_NOT_SUPPORTED })
	return 0, 0, ret
}
