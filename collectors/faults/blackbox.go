package faults

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// BlackboxFlush is the time at which the board last saved its flight recorder.
var BlackboxFlush = collectors.Gauge("nvgpu_blackbox_flush_timestamp_seconds",
	"Unix time of the last write of the board's black box.")

var _ = collectors.Register(collectors.Collector{
	Name:    "blackbox",
	Doc:     "Time of the last write of the board's black box.",
	Tier:    collectors.Slow,
	OptIn:   true,
	Metrics: []*collectors.Metric{BlackboxFlush},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		microseconds, _, ret := g.GetLastBBXFlushTime()
		out.Put(BlackboxFlush, float64(microseconds)/1e6, ret)
	},
})
