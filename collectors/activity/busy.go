package activity

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// BusySeconds integrates the driver's sample buffer, so a scrape every minute
// misses nothing: its rate() is the mean utilization.
var BusySeconds = collectors.Counter("nvgpu_busy_seconds_total",
	"Seconds the engine was busy, since the agent opened the GPU.", "engine")

// maxGap is the longest time in microseconds that one sample stands for. The
// driver's buffer is longer than a medium interval.
const maxGap = 2e6

var _ = collectors.Register(collectors.Collector{
	Name:    "busy",
	Doc:     "Busy time of the engines, integrated from the driver's sample buffers.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{BusySeconds},
	Open: func(*gpu.Device) collectors.Read {
		engines := []struct {
			name    string
			samples nvml.SamplingType
			last    uint64 // timestamp of the newest sample counted, microseconds
		}{
			{"gpu", nvml.GPU_UTILIZATION_SAMPLES, 0},
			{"memory", nvml.MEMORY_UTILIZATION_SAMPLES, 0},
			{"encoder", nvml.ENC_UTILIZATION_SAMPLES, 0},
			{"decoder", nvml.DEC_UTILIZATION_SAMPLES, 0},
		}
		return func(g *gpu.Device, out *collectors.Readings) {
			for i := range engines {
				e := &engines[i]
				kind, samples, ret := g.GetSamples(e.samples, e.last)
				if ret == nvml.ERROR_NOT_FOUND {
					ret = nvml.SUCCESS // no new sample
				}
				if ret != nvml.SUCCESS {
					out.Put(BusySeconds, 0, ret, e.name)
					continue
				}
				var busy float64
				first := e.last == 0 // busy time before the agent's start does not count
				for _, s := range samples {
					if s.TimeStamp <= e.last {
						continue // go-nvml also returns the unused end of its buffer
					}
					if !first {
						busy += gpu.Number(kind, s.SampleValue) / 100 * min(float64(s.TimeStamp-e.last), maxGap) / 1e6
					}
					e.last = s.TimeStamp
				}
				out.Add(BusySeconds, busy, e.name)
			}
		}
	},
})
