package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// powerFields are the fields of power, energy and throttling.
func powerFields(all *[nvml.FI_MAX]field) {
	energy := func(g *gpu) uint64 { return uint64(1000 * g.joules) }
	all[nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION] = plain(asUint64, energy)
	all[nvml.FI_DEV_ENERGY] = ofGPU(asUint64, energy)
	all[nvml.FI_DEV_POWER_AVERAGE] = field{asUint, func(g *gpu, scope uint32) (uint64, nvml.Return) {
		switch {
		case !g.model.Has("average_power"):
			return 0, nvml.ERROR_NOT_SUPPORTED
		case scope == nvml.POWER_SCOPE_GPU:
			return uint64(milliwatts(g.drawn())), nvml.SUCCESS
		case scope == nvml.POWER_SCOPE_MEMORY:
			return uint64(milliwatts(g.drawn() * g.model.Power.MemoryShare)), nvml.SUCCESS
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	}}
	all[nvml.FI_DEV_POWER_INSTANT] = ofGPU(asUint, func(g *gpu) uint64 { return uint64(milliwatts(g.watts)) })
	all[nvml.FI_DEV_POWER_MIN_LIMIT] = ofGPU(asUint,
		func(g *gpu) uint64 { return uint64(milliwatts(g.model.Power.Min)) })
	all[nvml.FI_DEV_POWER_MAX_LIMIT] = ofGPU(asUint,
		func(g *gpu) uint64 { return uint64(milliwatts(g.model.Power.Max)) })
	all[nvml.FI_DEV_POWER_DEFAULT_LIMIT] = ofGPU(asUint,
		func(g *gpu) uint64 { return uint64(milliwatts(g.model.Power.Default)) })
	limit := ofGPU(asUint, func(g *gpu) uint64 { return uint64(milliwatts(g.spec.PowerLimit)) })
	all[nvml.FI_DEV_POWER_CURRENT_LIMIT], all[nvml.FI_DEV_POWER_REQUESTED_LIMIT] = limit, limit
	throttleFields(all)
}

// throttleFields are the nanoseconds of each clock event reason.
func throttleFields(all *[nvml.FI_MAX]field) {
	for id, value := range map[int]func(*throttle) uint64{
		nvml.FI_DEV_PERF_POLICY_POWER:                           func(t *throttle) uint64 { return t.power },
		nvml.FI_DEV_PERF_POLICY_THERMAL:                         func(t *throttle) uint64 { return t.thermal },
		nvml.FI_DEV_PERF_POLICY_SYNC_BOOST:                      func(*throttle) uint64 { return 0 },
		nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT:                     func(*throttle) uint64 { return 0 },
		nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION:                 func(t *throttle) uint64 { return t.low },
		nvml.FI_DEV_PERF_POLICY_RELIABILITY:                     func(*throttle) uint64 { return 0 },
		nvml.FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS:                func(t *throttle) uint64 { return t.app },
		nvml.FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS:               func(t *throttle) uint64 { return t.app },
		nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:       func(t *throttle) uint64 { return t.swThermal },
		nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN:       func(t *throttle) uint64 { return t.hwThermal },
		nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: func(t *throttle) uint64 { return t.brake },
	} {
		all[id] = plain(asUint64, func(g *gpu) uint64 { return value(&g.throttled) })
	}
}

// ofGPU is a power field whose only scope is the GPU.
func ofGPU(kind nvml.ValueType, value func(*gpu) uint64) field {
	return field{kind, func(g *gpu, scope uint32) (uint64, nvml.Return) {
		if scope != nvml.POWER_SCOPE_GPU {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return value(g), nvml.SUCCESS
	}}
}

// eccFields are the fields of memory errors and remapped rows.
func eccFields(all *[nvml.FI_MAX]field) {
	mode := plain(asUint64, func(g *gpu) uint64 { return uint64(g.ecc.mode) })
	all[nvml.FI_DEV_ECC_CURRENT], all[nvml.FI_DEV_ECC_PENDING] = mode, mode
	total := func(severity int, counter nvml.EccCounterType) field {
		return plain(asUint64, func(g *gpu) uint64 { return g.ecc.total(severity, counter) })
	}
	all[nvml.FI_DEV_ECC_SBE_VOL_TOTAL] = total(corrected, nvml.VOLATILE_ECC)
	all[nvml.FI_DEV_ECC_DBE_VOL_TOTAL] = total(uncorrected, nvml.VOLATILE_ECC)
	all[nvml.FI_DEV_ECC_SBE_AGG_TOTAL] = total(corrected, nvml.AGGREGATE_ECC)
	all[nvml.FI_DEV_ECC_DBE_AGG_TOTAL] = total(uncorrected, nvml.AGGREGATE_ECC)
	all[nvml.FI_DEV_REMAPPED_COR] = plain(asUint64, func(g *gpu) uint64 { return uint64(g.rows.remapped[corrected]) })
	all[nvml.FI_DEV_REMAPPED_UNC] = plain(asUint64, func(g *gpu) uint64 { return uint64(g.rows.remapped[uncorrected]) })
	all[nvml.FI_DEV_REMAPPED_PENDING] = plain(asUint64, func(g *gpu) uint64 { return uint64(flag(g.rows.pending)) })
	all[nvml.FI_DEV_REMAPPED_FAILURE] = plain(asUint64, func(g *gpu) uint64 { return uint64(flag(g.rows.failure)) })
	all[nvml.FI_DEV_REMAPPED_ROWS_COR_INACTIVE] = plain(asUint64,
		func(g *gpu) uint64 { return uint64(g.rows.inactive[corrected]) })
	all[nvml.FI_DEV_REMAPPED_ROWS_UNC_INACTIVE] = plain(asUint64,
		func(g *gpu) uint64 { return uint64(g.rows.inactive[uncorrected]) })
}
