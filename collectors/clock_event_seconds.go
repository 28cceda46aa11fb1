package collectors

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// ClockEventSeconds is the time each reason has held the clocks down since the
// driver was loaded. NVML counts nanoseconds.
var ClockEventSeconds = Counter("nvgpu_clock_event_seconds_total", "Seconds the reason held the clocks down.", "reason")

var _ = Register(Collector{
	Name:    "clock_event_seconds",
	Doc:     "Time each reason held the clocks down; a read takes 1 ms.",
	Tier:    Medium,
	Metrics: []*Metric{ClockEventSeconds},
	Read: ReadFields(
		NewField(nvml.FI_DEV_PERF_POLICY_POWER, 0, ClockEventSeconds, 1e-9, "sw_power_cap"),
		NewField(nvml.FI_DEV_PERF_POLICY_SYNC_BOOST, 0, ClockEventSeconds, 1e-9, "sync_boost"),
		NewField(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 0, ClockEventSeconds, 1e-9, "sw_thermal"),
		NewField(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 0, ClockEventSeconds, 1e-9, "hw_thermal"),
		NewField(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 0, ClockEventSeconds, 1e-9, "hw_power_brake"),
		NewField(nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, 0, ClockEventSeconds, 1e-9, "board_limit"),
		NewField(nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, 0, ClockEventSeconds, 1e-9, "low_utilization"),
		NewField(nvml.FI_DEV_PERF_POLICY_RELIABILITY, 0, ClockEventSeconds, 1e-9, "reliability"),
		NewField(nvml.FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS, 0, ClockEventSeconds, 1e-9, "base_clocks"),
	),
})
