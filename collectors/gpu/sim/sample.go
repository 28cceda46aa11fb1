package sim

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	powerSamples = 120 // one a step: 12 s
	usageSamples = 72  // one every second step: 14.4 s
)

// ratios maps the sample types that are utilizations.
var ratios = map[nvml.SamplingType]func(*tick) float64{
	nvml.GPU_UTILIZATION_SAMPLES:    func(t *tick) float64 { return t.busy },
	nvml.MEMORY_UTILIZATION_SAMPLES: func(t *tick) float64 { return t.mem },
	nvml.ENC_UTILIZATION_SAMPLES:    func(t *tick) float64 { return t.enc },
	nvml.DEC_UTILIZATION_SAMPLES:    func(t *tick) float64 { return t.dec },
	nvml.JPG_UTILIZATION_SAMPLES:    func(t *tick) float64 { return t.jpg },
	nvml.OFA_UTILIZATION_SAMPLES:    func(t *tick) float64 { return t.ofa },
}

// GetSamples returns the driver's buffer of power in milliwatts, or of a
// utilization in percent: the samples after lastSeen, in microseconds, oldest
// first. It returns ERROR_NOT_FOUND if there are none.
func (d *device) GetSamples(kind nvml.SamplingType, lastSeen uint64) (nvml.ValueType, []nvml.Sample, nvml.Return) {
	all, ret := read(d, "nvmlDeviceGetSamples", func(g *gpu) ([]nvml.Sample, nvml.Return) {
		if kind < 0 || kind >= nvml.SAMPLINGTYPE_COUNT {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		if kind == nvml.TOTAL_POWER_SAMPLES {
			return g.samples(powerSamples, 1, lastSeen, func(t *tick) float64 { return 1000 * t.watts })
		}
		value, ok := ratios[kind]
		if !ok || len(g.spec.MIG) > 0 {
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		return g.samples(usageSamples, 2, lastSeen, func(t *tick) float64 { return 100 * value(t) })
	})
	if ret != nvml.SUCCESS {
		return nvml.VALUE_TYPE_UNSIGNED_INT, nil, ret
	}
	return nvml.VALUE_TYPE_UNSIGNED_INT, all, nvml.SUCCESS
}

// samples returns the last count samples of width steps each.
func (g *gpu) samples(count, width int64, lastSeen uint64, value func(*tick) float64) ([]nvml.Sample, nvml.Return) {
	last := g.n - (g.n%width+width)%width
	var all []nvml.Sample
	for n := last - (count-1)*width; n <= last; n += width {
		at := uint64(g.host.start.UnixMicro() + n*step.Microseconds())
		if at <= lastSeen {
			continue
		}
		sum := 0.0
		for i := n - width + 1; i <= n; i++ {
			sum += value(&g.hist[i&(history-1)])
		}
		s := nvml.Sample{TimeStamp: at}
		binary.LittleEndian.PutUint32(s.SampleValue[:], uint32(math.Round(sum/float64(width))))
		all = append(all, s)
	}
	if all == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return all, nvml.SUCCESS
}
