package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// ClockEventActive holds the reasons for reduced clocks at this moment.
var ClockEventActive = collectors.Gauge("nvgpu_clock_event_active",
	"Whether the reason holds the clocks down now.", "reason")

var clockReasons = []struct {
	name string
	bit  uint64
}{
	{"gpu_idle", nvml.ClocksEventReasonGpuIdle},
	{"app_clocks", nvml.ClocksEventReasonApplicationsClocksSetting},
	{"sw_power_cap", nvml.ClocksEventReasonSwPowerCap},
	{"hw_slowdown", nvml.ClocksThrottleReasonHwSlowdown},
	{"sync_boost", nvml.ClocksEventReasonSyncBoost},
	{"sw_thermal", nvml.ClocksEventReasonSwThermalSlowdown},
	{"hw_thermal", nvml.ClocksThrottleReasonHwThermalSlowdown},
	{"hw_power_brake", nvml.ClocksThrottleReasonHwPowerBrakeSlowdown},
	{"display_clocks", nvml.ClocksEventReasonDisplayClockSetting},
}

// ClockReasonBit returns the bit of a reason in the masks of NVML, as a number.
func ClockReasonBit(reason string) float64 {
	for _, r := range clockReasons {
		if r.name == reason {
			return float64(r.bit)
		}
	}
	return 0
}

var _ = collectors.Register(collectors.Collector{
	Name:    "clock_events",
	Doc:     "Reasons for reduced clocks at this moment.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{ClockEventActive},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		supported, ret := g.GetSupportedClocksEventReasons()
		if ret != nvml.SUCCESS {
			out.Put(ClockEventActive, 0, ret)
			return
		}
		active, ret := g.GetCurrentClocksEventReasons()
		for _, r := range clockReasons {
			if supported&r.bit != 0 {
				out.Put(ClockEventActive, collectors.Bool(active&r.bit != 0), ret, r.name)
			}
		}
	},
})
