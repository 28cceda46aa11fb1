package activity

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Video sessions on the GPU.
var (
	EncoderSessions = collectors.Gauge("nvgpu_encoder_sessions", "Sessions that encode video on the GPU now.")
	EncoderFPS      = collectors.Gauge("nvgpu_encoder_average_fps",
		"Mean frame rate of the encoder sessions, in frames per second.")
	EncoderLatency = collectors.Gauge("nvgpu_encoder_average_latency_seconds",
		"Mean encode latency of the encoder sessions.")
	FBCSessions = collectors.Gauge("nvgpu_fbc_sessions", "Sessions that capture the frame buffer of the GPU now, as for remote desktops.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "encoder",
	Doc:     "Video encoder and frame buffer capture sessions.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{EncoderSessions, EncoderFPS, EncoderLatency, FBCSessions},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		sessions, fps, microseconds, ret := g.GetEncoderStats()
		out.Put(EncoderSessions, float64(sessions), ret)
		out.Put(EncoderFPS, float64(fps), ret)
		out.Put(EncoderLatency, float64(microseconds)/1e6, ret)
		fbc, ret := g.GetFBCStats()
		out.Put(FBCSessions, float64(fbc.SessionsCount), ret)
	},
})
