package exporter

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
)

// A dcgmRow maps one series of dcgm-exporter to ours. A later row with the same
// name stands in for GPUs that lack the first.
type dcgmRow struct {
	name   string
	kind   collectors.Type
	help   string
	metric *collectors.Metric
	match  []string           // labels after gpu and uuid; "" sums over the label, a|b over two of its values
	scale  float64            // to dcgm-exporter's unit, in whole numbers
	mig    *collectors.Metric // the same for a GPU instance: its labels are gi, then match
}

const (
	gauge   = collectors.GaugeType
	counter = collectors.CounterType
	perMiB  = 1. / (1 << 20)
)

// dcgmDefault are dcgm-exporter's default metrics, with its types and help texts
// (its etc/default-counters.csv). collectors/testdata/dcgm.tsv has the same.
var dcgmDefault = []dcgmRow{
	{"DCGM_FI_DEV_SM_CLOCK", gauge, "SM clock frequency (in MHz).", device.Clock, []string{"sm"}, 1e-6, nil},
	{"DCGM_FI_DEV_MEM_CLOCK", gauge, "Memory clock frequency (in MHz).",
		device.Clock, []string{"memory"}, 1e-6, nil},
	{"DCGM_FI_DEV_MEMORY_TEMP", gauge, "Memory temperature (in C).",
		device.Temperature, []string{"memory"}, 1, nil},
	{"DCGM_FI_DEV_GPU_TEMP", gauge, "GPU temperature (in C).", device.Temperature, []string{"gpu"}, 1, nil},
	{"DCGM_FI_DEV_POWER_USAGE", gauge, "Power draw (in W).", device.Power, []string{"average", "gpu"}, 1, nil},
	{"DCGM_FI_DEV_POWER_USAGE", gauge, "Power draw (in W).", device.Power, []string{"instant", "gpu"}, 1, nil},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", counter, "Total energy consumption since boot (in mJ).",
		device.Energy, []string{"gpu"}, 1000, nil},
	{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", counter, "Total number of PCIe retries.", links.PCIeReplays, nil, 1, nil},
	{"DCGM_FI_DEV_GPU_UTIL", gauge, "GPU utilization (in %).", activity.Utilization, []string{"gpu"}, 100, nil},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", gauge, "Memory utilization (in %).",
		activity.Utilization, []string{"memory"}, 100, nil},
	{"DCGM_FI_DEV_ENC_UTIL", gauge, "Encoder utilization (in %).",
		activity.Utilization, []string{"encoder"}, 100, nil},
	{"DCGM_FI_DEV_DEC_UTIL", gauge, "Decoder utilization (in %).",
		activity.Utilization, []string{"decoder"}, 100, nil},
	{"DCGM_FI_DEV_XID_ERRORS", gauge, "Value of the last XID error encountered.",
		faults.XIDLast, []string{""}, 1, nil},
	// The GPU has events, but no XID yet.
	{"DCGM_FI_DEV_XID_ERRORS", gauge, "Value of the last XID error encountered.",
		faults.Events, []string{""}, 0, nil},
	{"DCGM_FI_DEV_FB_FREE", gauge, "Framebuffer memory free (in MiB).",
		device.MemoryBytes, []string{"free"}, perMiB, device.MIGMemory},
	{"DCGM_FI_DEV_FB_USED", gauge, "Framebuffer memory used (in MiB).",
		device.MemoryBytes, []string{"used"}, perMiB, device.MIGMemory},
	{"DCGM_FI_DEV_FB_RESERVED", gauge, "Framebuffer memory reserved (in MiB).",
		device.MemoryBytes, []string{"reserved"}, perMiB, device.MIGMemory},
	{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", counter, "Total number of NVLink bandwidth counters for all lanes.",
		links.NVLinkBytes, []string{"", "data", ""}, 1. / 1024, nil},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", counter, "Number of remapped rows for uncorrectable errors",
		faults.RemappedRows, []string{"uncorrectable", "active"}, 1, nil},
	{"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", counter, "Number of remapped rows for correctable errors",
		faults.RemappedRows, []string{"correctable", "active"}, 1, nil},
	{"DCGM_FI_DEV_ROW_REMAP_FAILURE", gauge, "Whether remapping of rows has failed",
		faults.RowRemapFailure, nil, 1, nil},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", gauge, "Ratio of time the graphics engine is active.",
		activity.GPMActivity, []string{"graphics"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_SM_ACTIVE", gauge, "The ratio of cycles an SM has at least 1 warp assigned.",
		activity.GPMActivity, []string{"sm"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_SM_OCCUPANCY", gauge, "The ratio of number of warps resident on an SM.",
		activity.GPMOccupancy, nil, 1, activity.MIGOccupancy},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", gauge, "Ratio of cycles the tensor (HMMA) pipe is active.",
		activity.GPMActivity, []string{"tensor"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_DRAM_ACTIVE", gauge, "Ratio of cycles the device memory interface is active sending or " +
		"receiving data.",
		activity.GPMActivity, []string{"dram"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_PCIE_TX_BYTES", gauge, "The rate of data transmitted over the PCIe bus - including both protocol " +
		"headers and data payloads - in bytes per second.",
		activity.GPMPCIe, []string{"tx"}, 1, activity.MIGPCIe},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", gauge, "The rate of data received over the PCIe bus - including both protocol " +
		"headers and data payloads - in bytes per second.",
		activity.GPMPCIe, []string{"rx"}, 1, activity.MIGPCIe},
	{"DCGM_FI_PROF_NVLINK_TX_BYTES", gauge, "The rate of data transmitted over NVLink - in bytes per second.",
		links.GPMNVLink, []string{"tx", ""}, 1, nil},
	{"DCGM_FI_PROF_NVLINK_RX_BYTES", gauge, "The rate of data received over NVLink - in bytes per second.",
		links.GPMNVLink, []string{"rx", ""}, 1, nil},
}

// dcgmAdded are fields that sites add to dcgm-exporter's and dashboards show.
// The help texts are those of its csv files where they have the field.
var dcgmAdded = []dcgmRow{
	{"DCGM_FI_DEV_POWER_VIOLATION", counter, "Throttling duration due to power constraints (in ns).",
		device.ClockEventSeconds, []string{"sw_power_cap"}, 1e9, nil},
	{"DCGM_FI_DEV_THERMAL_VIOLATION", counter, "Throttling duration due to thermal constraints (in ns).",
		device.ClockEventSeconds, []string{"sw_thermal|hw_thermal"}, 1e9, nil},
	{"DCGM_FI_DEV_SYNC_BOOST_VIOLATION", counter, "Throttling duration due to sync-boost constraints (in ns).",
		device.ClockEventSeconds, []string{"sync_boost"}, 1e9, nil},
	{"DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", counter, "Throttling duration due to board limit constraints (in ns).",
		device.ClockEventSeconds, []string{"board_limit"}, 1e9, nil},
	{"DCGM_FI_DEV_LOW_UTIL_VIOLATION", counter, "Throttling duration due to low utilization (in ns).",
		device.ClockEventSeconds, []string{"low_utilization"}, 1e9, nil},
	{"DCGM_FI_DEV_RELIABILITY_VIOLATION", counter, "Throttling duration due to reliability constraints (in ns).",
		device.ClockEventSeconds, []string{"reliability"}, 1e9, nil},
	{"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", counter, "Total number of single-bit volatile ECC errors.",
		faults.ECCErrors, []string{"corrected", "volatile"}, 1, nil},
	{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", counter, "Total number of double-bit volatile ECC errors.",
		faults.ECCErrors, []string{"uncorrected", "volatile"}, 1, nil},
	{"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", counter, "Total number of single-bit persistent ECC errors.",
		faults.ECCErrors, []string{"corrected", "aggregate"}, 1, nil},
	{"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", counter, "Total number of double-bit persistent ECC errors.",
		faults.ECCErrors, []string{"uncorrected", "aggregate"}, 1, nil},
	{"DCGM_FI_DEV_RETIRED_SBE", counter, "Total number of retired pages due to single-bit errors.",
		faults.RetiredPages, []string{"single_bit"}, 1, nil},
	{"DCGM_FI_DEV_RETIRED_DBE", counter, "Total number of retired pages due to double-bit errors.",
		faults.RetiredPages, []string{"double_bit"}, 1, nil},
	{"DCGM_FI_DEV_ROW_REMAP_PENDING", gauge, "Whether remapping of rows is pending.",
		faults.RowRemapPending, nil, 1, nil},
	{"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", counter, "Total number of NVLink flow-control CRC errors.",
		links.NVLinkErrors, []string{"crc_flit", ""}, 1, nil},
	{"DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", counter, "Total number of NVLink data CRC errors.",
		links.NVLinkErrors, []string{"crc_data", ""}, 1, nil},
	{"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", counter, "Total number of NVLink retries.",
		links.NVLinkErrors, []string{"replay", ""}, 1, nil},
	{"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", counter, "Total number of NVLink recovery errors.",
		links.NVLinkErrors, []string{"recovery", ""}, 1, nil},
	{"DCGM_FI_DEV_PCIE_TX_THROUGHPUT", gauge, "PCIe traffic sent (in KB/s).",
		activity.GPMPCIe, []string{"tx"}, 1e-3, activity.MIGPCIe},
	{"DCGM_FI_DEV_PCIE_RX_THROUGHPUT", gauge, "PCIe traffic received (in KB/s).",
		activity.GPMPCIe, []string{"rx"}, 1e-3, activity.MIGPCIe},
	{"DCGM_FI_DEV_FB_TOTAL", gauge, "Framebuffer memory (in MiB).",
		device.MemoryTotal, nil, perMiB, device.MIGMemoryAll},
	{"DCGM_FI_DEV_POWER_MGMT_LIMIT", gauge, "Power limit (in W).",
		device.PowerLimit, []string{"requested"}, 1, nil},
	{"DCGM_FI_DEV_ENFORCED_POWER_LIMIT", gauge, "Power limit that the driver enforces (in W).",
		device.PowerLimit, []string{"enforced"}, 1, nil},
	{"DCGM_FI_DEV_FAN_SPEED", gauge, "Speed of the first fan (in %).",
		device.FanSpeed, []string{"0"}, 100, nil},
	{"DCGM_FI_DEV_MAX_SM_CLOCK", gauge, "Maximum SM clock (in MHz).", device.ClockMax, []string{"sm"}, 1e-6, nil},
	{"DCGM_FI_DEV_MAX_MEM_CLOCK", gauge, "Maximum memory clock (in MHz).",
		device.ClockMax, []string{"memory"}, 1e-6, nil},
	{"DCGM_FI_DEV_PSTATE", gauge, "Performance state.", device.PerformanceState, nil, 1, nil},
	{"DCGM_FI_DEV_PCIE_LINK_GEN", gauge, "PCIe generation of the link.",
		links.PCIeGeneration, []string{"current"}, 1, nil},
	{"DCGM_FI_DEV_PCIE_LINK_WIDTH", gauge, "Lanes of the PCIe link.", links.PCIeWidth, []string{"current"}, 1, nil},
	{"DCGM_FI_DEV_SLOWDOWN_TEMP", gauge, "Temperature at which the clocks slow down (in C).",
		device.TemperatureThreshold, []string{"slowdown"}, 1, nil},
	{"DCGM_FI_PROF_PIPE_FP64_ACTIVE", gauge, "Ratio of cycles the fp64 pipes are active.",
		activity.GPMActivity, []string{"fp64"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_PIPE_FP32_ACTIVE", gauge, "Ratio of cycles the fp32 pipes are active.",
		activity.GPMActivity, []string{"fp32"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_PIPE_FP16_ACTIVE", gauge, "Ratio of cycles the fp16 pipes are active.",
		activity.GPMActivity, []string{"fp16"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_PIPE_INT_ACTIVE", gauge, "Ratio of cycles the integer pipe is active.",
		activity.GPMActivity, []string{"integer"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", gauge, "Ratio of cycles the tensor (IMMA) pipe is active.",
		activity.GPMActivity, []string{"tensor_imma"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", gauge, "Ratio of cycles the tensor (HMMA) pipe is active.",
		activity.GPMActivity, []string{"tensor_hmma"}, 1, activity.MIGActivity},
	{"DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", gauge, "Ratio of cycles the tensor (DFMA) pipe is active.",
		activity.GPMActivity, []string{"tensor_dfma"}, 1, activity.MIGActivity},
	{"DCGM_FI_DEV_CLOCKS_EVENT_REASONS", gauge, "Current clock event reasons (bitmask of DCGM_CLOCKS_EVENT_REASON_*).",
		device.ClockEventActive, []string{""}, 1, nil},
	{"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", gauge, "Current clock throttle reasons (bitmask of " +
		"DCGM_CLOCKS_THROTTLE_REASON_*).", device.ClockEventActive, []string{""}, 1, nil},
	{"DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", counter, "Throttling duration below the base clocks (in ns).",
		device.ClockEventSeconds, []string{"base_clocks"}, 1e9, nil},
	{"DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", counter, "Throttling by the power cap (in ns).",
		device.ClockEventSeconds, []string{"sw_power_cap"}, 1e9, nil},
	{"DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", counter, "Throttling by sync boost (in ns).",
		device.ClockEventSeconds, []string{"sync_boost"}, 1e9, nil},
	{"DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", counter, "Throttling by the driver for heat (in ns).",
		device.ClockEventSeconds, []string{"sw_thermal"}, 1e9, nil},
	{"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", counter, "Throttling by the hardware for heat (in ns).",
		device.ClockEventSeconds, []string{"hw_thermal"}, 1e9, nil},
	{"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", counter, "Throttling by the power brake (in ns).",
		device.ClockEventSeconds, []string{"hw_power_brake"}, 1e9, nil},
	{"DCGM_FI_DEV_VIDEO_CLOCK", gauge, "Video encoder/decoder clock (in MHz).",
		device.Clock, []string{"video"}, 1e-6, nil},
	{"DCGM_FI_DEV_APP_SM_CLOCK", gauge, "SM application clock (in MHz).", device.ClockApp, []string{"sm"}, 1e-6, nil},
	{"DCGM_FI_DEV_APP_MEM_CLOCK", gauge, "Memory application clock (in MHz).",
		device.ClockApp, []string{"memory"}, 1e-6, nil},
	{"DCGM_FI_DEV_POWER_USAGE_INSTANT", gauge, "Current instantaneous power usage (in W).",
		device.Power, []string{"instant", "gpu"}, 1, nil},
	{"DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", gauge, "Minimum power limit (in W).", device.PowerLimit, []string{"min"}, 1, nil},
	{"DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", gauge, "Maximum power limit (in W).", device.PowerLimit, []string{"max"}, 1, nil},
	{"DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", gauge, "Default power limit (in W).",
		device.PowerLimit, []string{"default"}, 1, nil},
	{"DCGM_FI_DEV_GPU_TEMP_LIMIT", gauge, "Margin to the temperature at which the GPU slows down (in C).",
		device.TemperatureMargin, nil, 1, nil},
	{"DCGM_FI_DEV_SHUTDOWN_TEMP", gauge, "Temperature at which the GPU shuts off (in C).",
		device.TemperatureThreshold, []string{"shutdown"}, 1, nil},
	{"DCGM_FI_DEV_GPU_MAX_OP_TEMP", gauge, "Maximum operating temperature of the GPU (in C).",
		device.TemperatureThreshold, []string{"gpu_max"}, 1, nil},
	{"DCGM_FI_DEV_MEM_MAX_OP_TEMP", gauge, "Maximum operating temperature of the memory (in C).",
		device.TemperatureThreshold, []string{"memory_max"}, 1, nil},
	{"DCGM_FI_DEV_PCIE_MAX_LINK_GEN", gauge, "Highest PCIe generation of the link.",
		links.PCIeGeneration, []string{"max"}, 1, nil},
	{"DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", gauge, "Highest number of lanes of the PCIe link.",
		links.PCIeWidth, []string{"max"}, 1, nil},
	{fbUsedPercent, gauge, "Ratio of framebuffer memory used to what is not reserved (0 to 1).",
		device.MemoryBytes, []string{"used"}, 1, device.MIGMemory},
	{"DCGM_FI_DEV_BAR1_TOTAL", gauge, "Total BAR1 memory (in MiB).", device.BAR1Total, nil, perMiB, nil},
	{"DCGM_FI_DEV_BAR1_USED", gauge, "Used BAR1 memory (in MiB).", device.BAR1Bytes, []string{"used"}, perMiB, nil},
	{"DCGM_FI_DEV_BAR1_FREE", gauge, "Free BAR1 memory (in MiB).", device.BAR1Bytes, []string{"free"}, perMiB, nil},
	{"DCGM_FI_DEV_ECC_CURRENT", gauge, "Whether ECC is on.", device.ModeEnabled, []string{"ecc"}, 1, nil},
	{"DCGM_FI_DEV_ECC_PENDING", gauge, "Whether ECC is on after the next reset.",
		device.ModeEnabled, []string{"ecc_pending"}, 1, nil},
	{"DCGM_FI_DEV_PERSISTENCE_MODE", gauge, "Whether the persistence mode is on.",
		device.ModeEnabled, []string{"persistence"}, 1, nil},
	{"DCGM_FI_DEV_MIG_MODE", gauge, "Whether MIG is on.", device.ModeEnabled, []string{"mig"}, 1, nil},
	{"DCGM_FI_DEV_COMPUTE_MODE", gauge, "Compute mode.", device.ComputeMode, nil, 1, nil},
	{"DCGM_FI_DEV_RETIRED_PENDING", gauge, "Whether pages are pending retirement.",
		faults.RetiredPagesPending, nil, 1, nil},
	{"DCGM_FI_DEV_ECC_DBE_VOL_DEV", counter, "Double-bit volatile ECC errors of the device memory.",
		faults.ECCErrorsByLocation, []string{"uncorrected", "volatile", "dram"}, 1, nil},
	{"DCGM_FI_DEV_ECC_DBE_VOL_SRM", counter, "Double-bit volatile ECC errors of the SRAM.",
		faults.ECCErrorsByLocation, []string{"uncorrected", "volatile", "sram"}, 1, nil},
	{"DCGM_FI_DEV_THRESHOLD_SRM", gauge, "Whether the SRAM's errors exceeded their threshold.",
		faults.SRAMThreshold, nil, 1, nil},
	{"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX", gauge, "Banks with all spare rows.",
		faults.RowRemapBanks, []string{"max"}, 1, nil},
	{"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_HIGH", gauge, "Banks with many spare rows.",
		faults.RowRemapBanks, []string{"high"}, 1, nil},
	{"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", gauge, "Banks with some spare rows.",
		faults.RowRemapBanks, []string{"partial"}, 1, nil},
	{"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW", gauge, "Banks with few spare rows.",
		faults.RowRemapBanks, []string{"low"}, 1, nil},
	{"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE", gauge, "Banks without spare rows.",
		faults.RowRemapBanks, []string{"none"}, 1, nil},
	{"DCGM_FI_PROF_C2C_TX_ALL_BYTES", gauge, "Rate of data sent over C2C links (in bytes per second).",
		links.GPMC2C, []string{"tx"}, 1, nil},
	{"DCGM_FI_PROF_C2C_RX_ALL_BYTES", gauge, "Rate of data received over C2C links (in bytes per second).",
		links.GPMC2C, []string{"rx"}, 1, nil},
}

// fbUsedPercent is not what its name says, as in DCGM.
const fbUsedPercent = "DCGM_FI_DEV_FB_USED_PERCENT"

// dcgmFree is the place of the row of free memory, in bytes.
var dcgmFree = slices.IndexFunc(dcgmDefault, func(r dcgmRow) bool { return r.name == "DCGM_FI_DEV_FB_FREE" })

// dcgmRows are all rows of /metrics/dcgm.
var dcgmRows = append(slices.Clip(dcgmDefault), dcgmAdded...)

// dcgmLabels are the labels of dcgm-exporter, which renamed Hostname to hostname.
// Only GPU instances have
// GPU_I_PROFILE and GPU_I_ID. The holder's labels follow. Prometheus calls pod
// exported_pod if the target has a pod of its own, and dashboards rely on that,
// so both names are there on any target.
var dcgmLabels = []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname",
	"hostname", "DCGM_FI_DRIVER_VERSION", "namespace", "pod", "container", "exported_namespace", "exported_pod",
	"exported_container", "hpc_job"}

// dcgmMetrics are the families of the rows, by the row's place.
var dcgmMetrics = func() []*collectors.Metric {
	all := make([]*collectors.Metric, len(dcgmRows))
	for i, r := range dcgmRows {
		if i > 0 && dcgmRows[i-1].name == r.name {
			all[i] = all[i-1]
			continue
		}
		all[i] = &collectors.Metric{Name: r.name, Help: r.help, Type: r.kind, Labels: dcgmLabels}
		if r.metric == faults.XIDLast {
			all[i].Labels = append(slices.Clip(dcgmLabels), "err_code", "err_msg")
		}
	}
	return all
}()

// dcgmRowsOf are the places of the rows that use a metric.
var dcgmRowsOf = func() map[*collectors.Metric][]int {
	m := map[*collectors.Metric][]int{}
	for i, r := range dcgmRows {
		m[r.metric] = append(m[r.metric], i)
		if r.mig != nil {
			m[r.mig] = append(m[r.mig], i)
		}
	}
	return m
}()

// A dcgmEntity is a GPU, or an instance of one.
type dcgmEntity struct {
	gpu, uuid, gi      string
	pci, device, model string // of GPUs; "" if unknown
	profile            string // of instances
	held               holder
	values             []float64 // by row; NaN if there is none
	split              []bool    // by row: whether the GPU's instances have values
	xid                float64   // time of the last one
}

// A holder is the pod or the job that has an entity.
type holder struct{ namespace, pod, container, job string }

// dcgmEntities are the GPUs and instances, by uuid and gi.
type dcgmEntities map[[2]string]*dcgmEntity

func (all dcgmEntities) of(gpu, uuid, gi string) *dcgmEntity {
	e := all[[2]string{uuid, gi}]
	if e == nil {
		e = &dcgmEntity{gpu: gpu, uuid: uuid, gi: gi, values: make([]float64, len(dcgmRows)),
			split: make([]bool, len(dcgmRows))}
		for i := range e.values {
			e.values[i] = math.NaN()
		}
		all[[2]string{uuid, gi}] = e
	}
	return e
}

// dcgm converts samples to dcgm-exporter's families. As there, a GPU that is
// split shows its instances in place of itself if they have values. xid
// describes XIDs.
func dcgm(samples []collectors.Sample, hostname string, xid func(code int) string) (out []collectors.Sample) {
	all, driver := dcgmEntities{}, ""
	for _, s := range samples {
		switch s.Metric {
		case device.DriverInfo:
			driver = label(s, "driver_version")
		case device.Info:
			e := all.of(s.Labels[0], s.Labels[1], "")
			e.pci, e.model = label(s, "pci_bus_id"), label(s, "name")
			if minor := label(s, "minor"); minor != "" && minor != "-1" {
				e.device = "nvidia" + minor
			}
		case device.MIGInfo: // "1c.3g.40gb" is part of a 3g.40gb
			profile := label(s, "profile")
			if _, of, part := strings.Cut(profile, "c."); part {
				profile = of
			}
			all.of(s.Labels[0], s.Labels[1], label(s, "gi")).profile = profile
		case workloads.HolderInfo:
			all.of(s.Labels[0], s.Labels[1], label(s, "gi")).held = holder{label(s, "namespace"), label(s, "pod"),
				label(s, "container"), label(s, "slurm_job")}
		}
		for _, row := range dcgmRowsOf[s.Metric] {
			all.add(row, s)
		}
	}
	place := func(a, b *dcgmEntity) int {
		return cmp.Or(cmp.Compare(len(a.gpu), len(b.gpu)), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.uuid, b.uuid),
			cmp.Compare(len(a.gi), len(b.gi)), cmp.Compare(a.gi, b.gi))
	}
	for _, e := range slices.SortedFunc(maps.Values(all), place) {
		g, h := all.of(e.gpu, e.uuid, ""), e.held
		out = e.put(out, xid, []string{e.gpu, e.uuid, g.pci, g.device, g.model, e.profile, e.gi, hostname, hostname, driver,
			h.namespace, h.pod, h.container, h.namespace, h.pod, h.container, h.job})
	}
	return out
}

// add notes s if it belongs to the row.
func (all dcgmEntities) add(row int, s collectors.Sample) {
	r, labels := dcgmRows[row], s.Labels[2:]
	g := all.of(s.Labels[0], s.Labels[1], "")
	e := g
	if s.Metric == r.mig {
		e, labels = all.of(g.gpu, g.uuid, labels[0]), labels[1:]
	}
	for i, want := range r.match {
		if want != "" && want != labels[i] &&
			!(strings.Contains(want, "|") && slices.Contains(strings.Split(want, "|"), labels[i])) {
			return
		}
	}
	if s.Metric == device.ClockEventActive {
		s.Value *= device.ClockReasonBit(labels[0])
	}
	g.split[row] = g.split[row] || e != g
	switch {
	case s.Metric == faults.XIDLast:
		if code, err := strconv.ParseFloat(labels[0], 64); err == nil && s.Value >= e.xid {
			e.values[row], e.xid = code, s.Value
		}
	case math.IsNaN(e.values[row]):
		e.values[row] = s.Value
	default:
		e.values[row] += s.Value
	}
}

// put adds the values of e, in dcgm-exporter's units.
func (e *dcgmEntity) put(out []collectors.Sample, xid func(code int) string, labels []string) []collectors.Sample {
	for i, r := range dcgmRows {
		v := e.values[i] * r.scale
		if r.name == fbUsedPercent {
			v /= v + e.values[dcgmFree]
		}
		instead := i > 0 && dcgmMetrics[i-1] == dcgmMetrics[i] && !math.IsNaN(e.values[i-1])
		if math.IsNaN(v) || e.split[i] || instead {
			continue
		}
		if r.scale != 1 {
			v = math.Round(v)
		}
		s := collectors.Sample{Metric: dcgmMetrics[i], Labels: labels, Value: v}
		if len(s.Metric.Labels) > len(labels) { // as there, with the code also as a label, 0 for none
			text := "No Error"
			if v != 0 {
				text = cmp.Or(xid(int(v)), "Unknown Error")
			}
			s.Labels = append(slices.Clip(labels), strconv.Itoa(int(v)), text)
		}
		out = append(out, s)
	}
	return out
}

// label returns the value of the named label of s.
func label(s collectors.Sample, name string) string {
	return s.Labels[slices.Index(s.Metric.Labels, name)]
}
