package collectors

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Fans, on boards that have their own.
var (
	FanSpeed  = Gauge("nvgpu_fan_speed_ratio", "Speed that the fan is driven at, of its usual highest.", "fan")
	FanTarget = Gauge("nvgpu_fan_target_ratio", "Speed that the fan should have.", "fan")
	FanRPM    = Gauge("nvgpu_fan_speed_rpm", "Revolutions a minute, of the board's first fan.", "fan")
)

var _ = Register(Collector{
	Name:    "fans",
	Doc:     "Fans.",
	Tier:    Medium,
	Metrics: []*Metric{FanSpeed, FanTarget, FanRPM},
	Read: func(g *gpu.Device, out *Readings) {
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
		out.Put(FanRPM, float64(rpm.Speed), absent(ret), "0")
	},
})
