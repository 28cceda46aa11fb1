package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
)

// period is NVML's sampling period of engines, in microseconds.
const period = 100_000

// percent returns the mean of a ratio over the last second in percent.
func (g *gpu) percent(value func(*tick) float64) uint32 {
	return uint32(100*g.average(value) + 0.5)
}

// GetUtilizationRates returns percentages over the last second; it is not
// supported under MIG.
func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return read(d, "nvmlDeviceGetUtilizationRates", func(g *gpu) (nvml.Utilization, nvml.Return) {
		if len(g.spec.MIG) > 0 {
			return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.Utilization{
			Gpu:    g.percent(func(t *tick) float64 { return t.busy }),
			Memory: g.percent(func(t *tick) float64 { return t.mem }),
		}, nvml.SUCCESS
	})
}

// engine answers for an engine: percent and sampling period in microseconds.
func (d *device) engine(call string, value func(*tick) float64) (percent, per uint32, ret nvml.Return) {
	ret = d.ask(call, func(g *gpu) nvml.Return {
		if len(g.spec.MIG) > 0 {
			return nvml.ERROR_NOT_SUPPORTED
		}
		percent, per = g.percent(value), period
		return nvml.SUCCESS
	})
	return percent, per, ret
}

// GetEncoderUtilization returns percent and sampling period in microseconds.
func (d *device) GetEncoderUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("nvmlDeviceGetEncoderUtilization", func(t *tick) float64 { return t.enc })
}

// GetDecoderUtilization returns percent and sampling period in microseconds.
func (d *device) GetDecoderUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("nvmlDeviceGetDecoderUtilization", func(t *tick) float64 { return t.dec })
}

// GetJpgUtilization returns percent and sampling period in microseconds.
func (d *device) GetJpgUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("nvmlDeviceGetJpgUtilization", func(t *tick) float64 { return t.jpg })
}

// GetOfaUtilization returns percent and sampling period in microseconds.
func (d *device) GetOfaUtilization() (uint32, uint32, nvml.Return) {
	return d.engine("nvmlDeviceGetOfaUtilization", func(t *tick) float64 { return t.ofa })
}

// GetEncoderStats returns the sessions, their mean frames per second and their
// mean latency in microseconds.
func (d *device) GetEncoderStats() (sessions int, fps, latency uint32, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetEncoderStats", func(g *gpu) nvml.Return {
		for _, v := range g.spec.VGPUs {
			sessions += v.Encoders
		}
		if g.percent(func(t *tick) float64 { return t.enc }) > 0 {
			sessions++
		}
		if sessions > 0 {
			fps, latency = 30, 4800
		}
		return nvml.SUCCESS
	})
	return sessions, fps, latency, ret
}

// GetFBCStats returns no sessions.
func (d *device) GetFBCStats() (nvml.FBCStats, nvml.Return) {
	return fixed(d, "nvmlDeviceGetFBCStats", func(*models.Model) nvml.FBCStats { return nvml.FBCStats{} })
}
