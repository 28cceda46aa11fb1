package sim

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// degrees rounds a temperature.
func degrees(celsius float64) int32 { return int32(math.Round(celsius)) }

// GetTemperature returns degrees Celsius of the core.
func (d *device) GetTemperature(sensor nvml.TemperatureSensors) (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetTemperature", func(g *gpu) (uint32, nvml.Return) {
		if sensor != nvml.TEMPERATURE_GPU {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return uint32(degrees(g.celsius)), nvml.SUCCESS
	})
}

// GetTemperatureThreshold returns degrees Celsius, on models before Ada and on
// those that still have them.
func (d *device) GetTemperatureThreshold(which nvml.TemperatureThresholds) (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetTemperatureThreshold", func(g *gpu) (uint32, nvml.Return) {
		t := g.model.Temperature
		limits := []float64{
			nvml.TEMPERATURE_THRESHOLD_SHUTDOWN: t.Shutdown, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN: t.Slowdown,
			nvml.TEMPERATURE_THRESHOLD_MEM_MAX: t.MemoryMax, nvml.TEMPERATURE_THRESHOLD_GPU_MAX: t.GPUMax,
		}
		switch {
		case which < 0 || which >= nvml.TEMPERATURE_THRESHOLD_COUNT:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case int(which) >= len(limits) || !g.model.Has("thresholds"):
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return uint32(limits[which]), nvml.SUCCESS
	})
}

// GetMarginTemperature returns the margin to the maximum temperature at full
// clocks in degrees Celsius, negative beyond it.
func (d *device) GetMarginTemperature() (nvml.MarginTemperature, nvml.Return) {
	return featured(d, "nvmlDeviceGetMarginTemperature", "margin", func(g *gpu) nvml.MarginTemperature {
		m := nvml.MarginTemperature{MarginTemperature: degrees(g.model.Temperature.GPUMax) - degrees(g.celsius)}
		m.Version = nvml.STRUCT_VERSION(m, 1)
		return m
	})
}

func (g *gpu) airflowLost(f *scenarios.Fault) { g.hotter = f.Celsius }
func (g *gpu) airflowBack(*scenarios.Fault)   { g.hotter = 0 }

// fanSpeed returns a fan's speed in percent of its maximum.
func (g *gpu) fanSpeed() float64 { return min(max(30+1.6*(g.celsius-45), 30), 100) }

// onFan is read for a call on one fan.
func onFan[T any](d *device, call string, fan int, value func(*gpu) T) (T, nvml.Return) {
	return read(d, call, func(g *gpu) (v T, ret nvml.Return) {
		switch {
		case g.model.Fans == 0:
			return v, nvml.ERROR_NOT_SUPPORTED
		case fan < 0 || fan >= g.model.Fans:
			return v, nvml.ERROR_INVALID_ARGUMENT
		}
		return value(g), nvml.SUCCESS
	})
}

// GetNumFans returns the number of fans on the board, 0 for a passive one.
func (d *device) GetNumFans() (int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetNumFans", func(m *models.Model) int { return m.Fans })
}

// GetFanSpeed_v2 returns percent.
func (d *device) GetFanSpeed_v2(fan int) (uint32, nvml.Return) {
	return onFan(d, "nvmlDeviceGetFanSpeed_v2", fan, func(g *gpu) uint32 { return uint32(g.fanSpeed()) })
}

// GetTargetFanSpeed returns percent.
func (d *device) GetTargetFanSpeed(fan int) (int, nvml.Return) {
	return onFan(d, "nvmlDeviceGetTargetFanSpeed", fan, func(g *gpu) int { return int(g.fanSpeed()) })
}

// GetFanSpeedRPM returns revolutions per minute of the first fan.
func (d *device) GetFanSpeedRPM() (nvml.FanSpeedInfo, nvml.Return) {
	return onFan(d, "nvmlDeviceGetFanSpeedRPM", 0, func(g *gpu) nvml.FanSpeedInfo {
		s := nvml.FanSpeedInfo{Speed: uint32(48 * g.fanSpeed())}
		s.Version = nvml.STRUCT_VERSION(s, 1)
		return s
	})
}
