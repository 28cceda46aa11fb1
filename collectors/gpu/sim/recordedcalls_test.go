package sim

import (
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// getters lists the calls to compare whose method is Get and their name in the recording.
const getters = `Name MinorNumber VbiosVersion InforomImageVersion Architecture Brand UtilizationRates MemoryInfo
MemoryInfo_v2 MarginTemperature PowerUsage EnforcedPowerLimit EccMode RowRemapperHistogram PcieSpeed AccountingMode
AccountingPids ComputeMode PersistenceMode MigMode BoardId BoardPartNumber NumGpuCores MemoryBusWidth Attributes
SupportedEventTypes ModuleId GspFirmwareMode GspFirmwareVersion RepairStatus`

// recordedCalls maps the names of the calls to compare to their methods.
var recordedCalls = map[string]recordedCall{
	"ValidateInforom": method("ValidateInforom"), "BAR1": method("GetBAR1MemoryInfo"),
	"Temperature":    method("GetTemperature", 0),
	"TempThreshold0": method("GetTemperatureThreshold", 0), "TempThreshold1": method("GetTemperatureThreshold", 1),
	"TempThreshold2": method("GetTemperatureThreshold", 2), "TempThreshold3": method("GetTemperatureThreshold", 3),
	"TempThreshold4": method("GetTemperatureThreshold", 4), "FanSpeed": method("GetFanSpeed_v2", 0),
	"PowerMgmtLimit":   method("GetPowerManagementLimit"),
	"PowerConstraints": method("GetPowerManagementLimitConstraints"),
	"PowerDefault":     method("GetPowerManagementDefaultLimit"), "PState": method("GetPerformanceState"),
	"ClockSM": method("GetClockInfo", nvml.CLOCK_SM), "ClockMem": method("GetClockInfo", nvml.CLOCK_MEM),
	"ClockVideo":            method("GetClockInfo", nvml.CLOCK_VIDEO),
	"MaxClockSM":            method("GetMaxClockInfo", nvml.CLOCK_SM),
	"EventReasons":          method("GetCurrentClocksEventReasons"),
	"SupportedEventReasons": method("GetSupportedClocksEventReasons"),
	"ECC vol corr":          method("GetTotalEccErrors", 0, 0), "ECC agg unc": method("GetTotalEccErrors", 1, 1),
	"MemErrCounter loc0": method("GetMemoryErrorCounter", 0, 0, 0),
	"MemErrCounter loc2": method("GetMemoryErrorCounter", 0, 0, 2),
	"MemErrCounter loc6": method("GetMemoryErrorCounter", 0, 0, 6),
	"MemErrCounter loc7": method("GetMemoryErrorCounter", 0, 0, 7),
	"RetiredPagesDBE":    method("GetRetiredPages", nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
	"PcieTX":             method("GetPcieThroughput", nvml.PCIE_UTIL_TX_BYTES),
	"PcieRX":             method("GetPcieThroughput", nvml.PCIE_UTIL_RX_BYTES),
	"PcieReplay":         method("GetPcieReplayCounter"), "PcieGen": method("GetCurrPcieLinkGeneration"),
	"PcieWidth": method("GetCurrPcieLinkWidth"), "PcieMaxGen": method("GetMaxPcieLinkGeneration"),
	"PcieGpuMaxGen": method("GetGpuMaxPcieLinkGeneration"), "PcieMaxWidth": method("GetMaxPcieLinkWidth"),
	"EncoderUtil": method("GetEncoderUtilization"), "DecoderUtil": method("GetDecoderUtilization"),
	"JpgUtil": method("GetJpgUtilization"), "OfaUtil": method("GetOfaUtilization"),
	"GraphicsProcs": method("GetGraphicsRunningProcesses"), "MPSProcs": method("GetMPSComputeRunningProcesses"),
	"GpuFabricInfoV": method("FabricInfo"), "VirtMode": method("GetVirtualizationMode"),
	"CudaComputeCap": method("GetCudaComputeCapability"), "NumaNode": method("GetNumaNodeId"),
	"NvLinkState0":          method("GetNvLinkState", 0),
	"NvLinkErr CRC flit":    method("GetNvLinkErrorCounter", 0, nvml.NVLINK_ERROR_DL_CRC_FLIT),
	"GpmQueryDeviceSupport": method("GpmQueryDeviceSupport"),
	"Samples SM util":       method("GetSamples", nvml.GPU_UTILIZATION_SAMPLES, 0),
	"Samples power":         method("GetSamples", nvml.TOTAL_POWER_SAMPLES, 0),
}

// callTolerances has the tolerances of numbers, idle and under a load.
var callTolerances = map[string]map[string]float64{
	"idle": {"Temperature": 2, "MarginTemperature": 2, "PowerUsage": 3000, "ClockSM": 570, "ClockVideo": 570,
		"PcieTX": 2000, "PcieRX": 2000},
	"full": {"UtilizationRates": 3, "BAR1": 100_000, "Temperature": 2, "MarginTemperature": 3, "PowerUsage": 15_000,
		"ClockSM": 30, "ClockVideo": 30, "PcieTX": 3000, "PcieRX": 3000},
}

func init() {
	for name := range strings.FieldsSeq(getters) {
		recordedCalls[name] = method("Get" + name)
	}
}

// recordedCall calls a method: its values, and what it returns.
type recordedCall func(*device) (any, nvml.Return)

// method returns the call of a method, whose arguments are numbers. It shows samples by how many they are,
// and the fabric by the version of the structure that the recording has.
func method(name string, arguments ...any) recordedCall {
	return func(d *device) (any, nvml.Return) {
		m := reflect.ValueOf(d).MethodByName(name)
		var in []reflect.Value
		var values []any
		for i, a := range arguments {
			in = append(in, reflect.ValueOf(a).Convert(m.Type().In(i)))
		}
		out := m.Call(in)
		for _, v := range out[:len(out)-1] {
			switch v := v.Interface().(type) {
			case []nvml.Sample:
				values = append(values, len(v))
			case nvml.GpuFabricInfo_v3:
				v2 := nvml.GpuFabricInfo_v2{ClusterUuid: v.ClusterUuid, Status: v.Status, CliqueId: v.CliqueId,
					State: v.State, HealthMask: v.HealthMask}
				v2.Version = nvml.STRUCT_VERSION(v2, 2)
				values = append(values, v2)
			default:
				values = append(values, v)
			}
		}
		ret := out[len(out)-1].Interface().(nvml.Return)
		if len(values) == 1 {
			return values[0], ret
		}
		return values, ret
	}
}
