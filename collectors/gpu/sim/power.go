package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// milliwatts converts watts as NVML gives them.
func milliwatts(watts float64) uint32 { return uint32(1000*watts + 0.5) }

// drawn returns the mean power of the last second in watts.
func (g *gpu) drawn() float64 { return g.average(func(t *tick) float64 { return t.watts }) }

// GetPowerUsage returns the mean of the last second in milliwatts, or the value
// of the last step for a model without an average.
func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetPowerUsage", func(g *gpu) (uint32, nvml.Return) {
		if !g.model.Has("average_power") {
			return milliwatts(g.watts), nvml.SUCCESS
		}
		return milliwatts(g.drawn()), nvml.SUCCESS
	})
}

// GetEnforcedPowerLimit returns milliwatts.
func (d *device) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return d.limit("nvmlDeviceGetEnforcedPowerLimit")
}

// GetPowerManagementLimit returns milliwatts.
func (d *device) GetPowerManagementLimit() (uint32, nvml.Return) {
	return d.limit("nvmlDeviceGetPowerManagementLimit")
}

func (d *device) limit(call string) (uint32, nvml.Return) {
	return read(d, call, func(g *gpu) (uint32, nvml.Return) { return milliwatts(g.spec.PowerLimit), nvml.SUCCESS })
}

// GetPowerManagementDefaultLimit returns milliwatts.
func (d *device) GetPowerManagementDefaultLimit() (uint32, nvml.Return) {
	return fixed(d, "nvmlDeviceGetPowerManagementDefaultLimit",
		func(m *models.Model) uint32 { return milliwatts(m.Power.Default) })
}

// GetPowerManagementLimitConstraints returns milliwatts.
func (d *device) GetPowerManagementLimitConstraints() (low, high uint32, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetPowerManagementLimitConstraints", func(g *gpu) nvml.Return {
		low, high = milliwatts(g.model.Power.Min), milliwatts(g.model.Power.Max)
		return nvml.SUCCESS
	})
	return low, high, ret
}

// GetTotalEnergyConsumption returns millijoules since the driver was loaded.
func (d *device) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return read(d, "nvmlDeviceGetTotalEnergyConsumption", func(g *gpu) (uint64, nvml.Return) {
		return uint64(1000 * g.joules), nvml.SUCCESS
	})
}

// GetPowerSource returns mains.
func (d *device) GetPowerSource() (nvml.PowerSource, nvml.Return) {
	return fixed(d, "nvmlDeviceGetPowerSource", func(*models.Model) nvml.PowerSource { return nvml.POWER_SOURCE_AC })
}

func (g *gpu) brakeOn(*scenarios.Fault)  { g.brake = true }
func (g *gpu) brakeOff(*scenarios.Fault) { g.brake = false }
