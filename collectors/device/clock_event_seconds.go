package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
)

// ClockEventSeconds is the time each reason has held the clocks down since the
// driver was loaded. NVML counts nanoseconds.
var ClockEventSeconds = collectors.Counter("nvgpu_clock_event_seconds_total",
	"Seconds the reason held the clocks down.", "reason")

var _ = collectors.Register(collectors.Collector{
	Name:    "clock_event_seconds",
	Doc:     "Time each reason held the clocks down; a read takes 1 ms.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{ClockEventSeconds},
	Read: collectors.ReadFields(
		collectors.NewField(nvml.FI_DEV_PERF_POLICY_POWER, 0, ClockEventSeconds, 1e-9, "sw_power_cap"),
		collectors.NewField(nvml.FI_DEV_PERF_POLICY_SYNC_BOOST, 0, ClockEventSeconds, 1e-9, "sync_boost"),
		collectors.NewField(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 0, ClockEventSeconds, 1e-9, "sw_thermal"),
		collectors.NewField(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 0, ClockEventSeconds, 1e-9, "hw_thermal"),
		collectors.NewField(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 0, ClockEventSeconds, 1e-9,
			"hw_power_brake"),
		collectors.NewField(nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, 0, ClockEventSeconds, 1e-9, "board_limit"),
		collectors.NewField(nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, 0, ClockEventSeconds, 1e-9, "low_utilization"),
		collectors.NewField(nvml.FI_DEV_PERF_POLICY_RELIABILITY, 0, ClockEventSeconds, 1e-9, "reliability"),
		collectors.NewField(nvml.FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS, 0, ClockEventSeconds, 1e-9, "base_clocks"),
	),
})
