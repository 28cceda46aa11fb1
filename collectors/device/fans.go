package device

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Fans of boards that have their own.
var (
	FanSpeed  = collectors.Gauge("nvgpu_fan_speed_ratio", "Fan speed as a ratio of its usual maximum.", "fan")
	FanTarget = collectors.Gauge("nvgpu_fan_target_ratio", "Target fan speed as a ratio of its usual maximum.", "fan")
	FanRPM    = collectors.Gauge("nvgpu_fan_speed_rpm", "Speed of the board's first fan in revolutions per minute.", "fan")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "fans",
	Doc:     "Fans.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{FanSpeed, FanTarget, FanRPM},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		fans, ret := g.GetNumFans()
		if ret == nvml.SUCCESS && fans == 0 {
			ret = nvml.ERROR_NOT_SUPPORTED // cooled by the chassis
		}
		if ret != nvml.SUCCESS {
			out.Put(FanSpeed, 0, ret)
			return
		}
		for i := range fans {
			percent, ret := g.GetFanSpeed_v2(i)
			out.Put(FanSpeed, min(1, float64(percent)/100), ret, strconv.Itoa(i))
			target, ret := g.GetTargetFanSpeed(i)
			out.Put(FanTarget, min(1, float64(target)/100), ret, strconv.Itoa(i))
		}
		rpm, ret := g.GetFanSpeedRPM()
		out.Put(FanRPM, float64(rpm.Speed), gpu.Absent(ret), "0")
	},
})
