package collectors

import "gpusteward/collectors/gpu"

// BlackboxFlush is when the board last saved its flight recorder.
var BlackboxFlush = Gauge("nvgpu_blackbox_flush_timestamp_seconds", "When the board's black box was last written, as a Unix time.")

var _ = Register(Collector{
	Name:    "blackbox",
	Doc:     "When the board's black box was last written.",
	Tier:    Slow,
	OptIn:   true,
	Metrics: []*Metric{BlackboxFlush},
	Read: func(g *gpu.Device, out *Readings) {
		microseconds, _, ret := g.GetLastBBXFlushTime()
		out.Put(BlackboxFlush, float64(microseconds)/1e6, ret)
	},
})
