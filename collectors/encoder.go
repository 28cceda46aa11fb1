package collectors

import "gpusteward/collectors/gpu"

// Video sessions on the GPU.
var (
	EncoderSessions = Gauge("nvgpu_encoder_sessions", "Video encoder sessions.")
	EncoderFPS      = Gauge("nvgpu_encoder_average_fps",
		"Mean frame rate of the encoder sessions, in frames per second.")
	EncoderLatency = Gauge("nvgpu_encoder_average_latency_seconds", "Mean encode latency of the encoder sessions.")
	FBCSessions    = Gauge("nvgpu_fbc_sessions", "Frame buffer capture sessions.")
)

var _ = Register(Collector{
	Name:    "encoder",
	Doc:     "Video encoder and frame buffer capture sessions.",
	Tier:    Medium,
	Metrics: []*Metric{EncoderSessions, EncoderFPS, EncoderLatency, FBCSessions},
	Read: func(g *gpu.Device, out *Readings) {
		sessions, fps, microseconds, ret := g.GetEncoderStats()
		out.Put(EncoderSessions, float64(sessions), ret)
		out.Put(EncoderFPS, float64(fps), ret)
		out.Put(EncoderLatency, float64(microseconds)/1e6, ret)
		fbc, ret := g.GetFBCStats()
		out.Put(FBCSessions, float64(fbc.SessionsCount), ret)
	},
})
