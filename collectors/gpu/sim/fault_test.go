package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// struck is a GPU during a test of a fault.
type struck struct {
	*testing.T
	host   *Host
	device *device
}

func (s struck) reasons() uint64 {
	s.Helper()
	return must[uint64](s)(s.device.GetCurrentClocksEventReasons())
}

func (s struck) field(id uint32) uint64 { s.Helper(); return fieldOf(s, s.device, id, 0) }

func (s struck) margin() int32 {
	s.Helper()
	return must[nvml.MarginTemperature](s)(s.device.GetMarginTemperature()).MarginTemperature
}

func (s struck) expect(what string, ok bool) {
	s.Helper()
	if !ok {
		s.Errorf("%s does not hold", what)
	}
}

// faultTests holds, for a fault at 10 s that lasts 40 s, a condition for 30 s
// later and one for another 100 s later.
var faultTests = []struct {
	name          string
	model         string
	fault         scenarios.Fault
	during, after func(struck)
}{
	{"thermal", "h100", scenarios.Fault{Kind: "thermal"},
		func(s struck) {
			const heat = nvml.ClocksThrottleReasonHwThermalSlowdown | nvml.ClocksThrottleReasonHwSlowdown |
				nvml.ClocksEventReasonSwThermalSlowdown
			s.expect("heat is a reason", s.reasons()&heat == heat)
			s.expect("the margin is negative", s.margin() < 0)
			s.expect("the clock fell", must[uint32](s)(s.device.GetClockInfo(nvml.CLOCK_SM)) <= 800)
			s.expect("the memory is hot", s.field(82) > 70)
			s.expect("time is counted", s.field(269) > 0 && s.field(270) > 0 && s.field(75) >= s.field(270))
		},
		func(s struck) {
			s.expect("heat is no reason", s.reasons()&^uint64(nvml.ClocksEventReasonSwPowerCap) == 0)
			s.expect("the margin is back", s.margin() > 10)
			s.expect("the clock is back", must[uint32](s)(s.device.GetClockInfo(nvml.CLOCK_SM)) > 1200)
		}},
	{"power_brake", "h100", scenarios.Fault{Kind: "power_brake"},
		func(s struck) {
			const brake = nvml.ClocksThrottleReasonHwPowerBrakeSlowdown | nvml.ClocksThrottleReasonHwSlowdown
			s.expect("the brake is a reason", s.reasons()&brake == brake)
			s.expect("power fell", must[uint32](s)(s.device.GetPowerUsage()) < 350_000)
			s.expect("time is counted", near(float64(s.field(271)), 30e9, 2e8))
		},
		func(s struck) {
			s.expect("the brake is no reason", s.reasons()&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown == 0)
			s.expect("power is back", must[uint32](s)(s.device.GetPowerUsage()) > 600_000)
			s.expect("time stands", near(float64(s.field(271)), 40e9, 2e8))
		}},
	{"nvlink_down", "h100", scenarios.Fault{Kind: "nvlink_down", Link: 3},
		func(s struck) {
			s.expect("the link is down", must[nvml.EnableState](s)(s.device.GetNvLinkState(3)) == nvml.FEATURE_DISABLED)
			s.expect("the next is up", must[nvml.EnableState](s)(s.device.GetNvLinkState(4)) == nvml.FEATURE_ENABLED)
			s.expect("recoveries are counted",
				must[uint64](s)(s.device.GetNvLinkErrorCounter(3, nvml.NVLINK_ERROR_DL_RECOVERY)) == 1)
			s.expect("17 links reach the switch", s.field(147) == 17)
			info := must[nvml.GpuFabricInfo_v3](s)(s.device.FabricInfo())
			s.expect("bandwidth is degraded", info.HealthMask&3 == nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE)
		},
		func(s struck) {
			s.expect("the link is up", must[nvml.EnableState](s)(s.device.GetNvLinkState(3)) == nvml.FEATURE_ENABLED)
			info := must[nvml.GpuFabricInfo_v3](s)(s.device.FabricInfo())
			s.expect("the fabric is well",
				info.State == nvml.GPU_FABRIC_STATE_COMPLETED &&
					info.HealthMask&3 == nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE)
		}},
	{"nvlink_errors", "h100", scenarios.Fault{Kind: "nvlink_errors", Link: 2, Count: 8},
		func(s struck) { s.expect("errors rise", fieldOf(s, s.device, 163, 2) >= 8*29) },
		func(s struck) { s.expect("errors stand", fieldOf(s, s.device, 163, 2) == 8*40) }},
	{"nvlink_errors of NVLink 5", "b200", scenarios.Fault{Kind: "nvlink_errors", Link: 2, Count: 8},
		func(s struck) {
			s.expect("errors rise", fieldOf(s, s.device, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, 2) >= 8*29)
			s.expect("the rate is high", fieldOf(s, s.device, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 2) == 3<<8|9)
		},
		func(s struck) {
			s.expect("the rate is low", fieldOf(s, s.device, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 2) == cleanBER)
		}},
	{"ecc corrected", "h100", scenarios.Fault{Kind: "ecc", Severity: "corrected", Location: "dram", Count: 5},
		func(s struck) {
			s.expect("five errors",
				must[uint64](s)(s.device.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)) == 5)
			s.expect("in DRAM",
				must[uint64](s)(s.device.GetMemoryErrorCounter(0, nvml.AGGREGATE_ECC, nvml.MEMORY_LOCATION_DRAM)) == 5)
		},
		func(s struck) { s.expect("they stand", s.field(3) == 5 && s.field(5) == 5 && s.field(4) == 0) }},
	{"ecc uncorrected", "h100", scenarios.Fault{Kind: "ecc", Severity: "uncorrected", Location: "sram", Count: 4},
		func(s struck) {
			status := must[nvml.EccSramErrorStatus](s)(s.device.GetSramEccErrorStatus())
			s.expect("the threshold is exceeded",
				status.BThresholdExceeded == 1 && status.AggregateUncSecDed == 4 && status.AggregateUncBucketSm == 4)
		},
		func(s struck) { s.expect("they stand", s.field(4) == 4 && s.field(6) == 4) }},
	{"pcie_errors", "h100", scenarios.Fault{Kind: "pcie_errors", Count: 3},
		func(s struck) {
			s.expect("replays rise",
				must[int](s)(s.device.GetPcieReplayCounter()) >= 3*29 && s.field(94) >= 3*29 && s.field(176) >= 3*29)
		},
		func(s struck) { s.expect("replays stand", s.field(94) == 3*40 && s.field(180) == 0) }},
	{"pcie_degraded", "h100", scenarios.Fault{Kind: "pcie_degraded", Generation: 4, Width: 8},
		func(s struck) {
			s.expect("the generation fell",
				must[int](s)(s.device.GetCurrPcieLinkGeneration()) == 4 &&
					must[int](s)(s.device.GetPcieSpeed()) == 16000)
			s.expect("the width fell",
				must[int](s)(s.device.GetCurrPcieLinkWidth()) == 8 &&
					must[int](s)(s.device.GetMaxPcieLinkWidth()) == 16)
		},
		func(s struck) {
			s.expect("the link is well",
				must[int](s)(s.device.GetCurrPcieLinkGeneration()) == 5 &&
					must[int](s)(s.device.GetCurrPcieLinkWidth()) == 16)
		}},
	{"row_remap pending", "h100", scenarios.Fault{Kind: "row_remap", Severity: "uncorrected", Pending: true, Count: 2},
		func(s struck) {
			r := must[nvml.RemappedRowsInfo_v2](s)(s.device.GetRemappedRows_v2())
			s.expect("a reset is due", r.BPending == 1 && r.UncInactiveRemaps == 2 && r.UncActiveRemaps == 0)
			s.expect("the fields agree", s.field(144) == 1 && s.field(302) == 2 && s.field(143) == 0)
		},
		func(s struck) {
			_, uncorrectable, pending, _, ret := s.device.GetRemappedRows()
			check(s, ret)
			s.expect("the rows are active", uncorrectable == 2 && !pending && s.field(302) == 0)
			h := must[nvml.RowRemapperHistogramValues](s)(s.device.GetRowRemapperHistogram())
			s.expect("banks add up", h.Max+h.High+h.Partial+h.Low+h.None == 2560 && h.Partial == 2)
		}},
	{"row_remap failure", "h100", scenarios.Fault{Kind: "row_remap", Severity: "uncorrected", Failure: true},
		func(s struck) {
			s.expect("remapping failed", s.field(145) == 1)
			s.expect("memory cannot be repaired",
				must[nvml.UnrepairableMemoryStatus_v1](s)(s.device.GetUnrepairableMemoryFlag_v1()).BUnrepairableMemory == 1)
		},
		func(s struck) { s.expect("it is repaired", s.field(145) == 0) }},
	{"recovery_action", "h100", scenarios.Fault{Kind: "recovery_action", Value: "drain_reset"},
		func(s struck) { s.expect("the action is due", s.field(230) == 4 && s.field(227) == 1) },
		func(s struck) { s.expect("no action is due", s.field(230) == 0 && s.field(227) == 0) }},
	{"reset_required", "h100", scenarios.Fault{Kind: "reset_required"},
		func(s struck) {
			_, ret := s.device.GetPowerUsage()
			want(s, "power", ret, nvml.ERROR_RESET_REQUIRED)
			must[string](s)(s.device.GetUUID())
			s.expect("a reset is due", s.field(230) == 1)
			v := []nvml.FieldValue{{FieldId: nvml.FI_DEV_POWER_AVERAGE}}
			check(s, s.device.GetFieldValues(v))
			want(s, "field", nvml.Return(v[0].NvmlReturn), nvml.ERROR_RESET_REQUIRED)
		},
		func(s struck) {
			must[uint32](s)(s.device.GetPowerUsage())
			s.expect("no reset is due", s.field(230) == 0)
		}},
	{"lost", "h100", scenarios.Fault{Kind: "lost"},
		func(s struck) {
			_, ret := s.device.GetUUID()
			want(s, "identity", ret, nvml.ERROR_GPU_IS_LOST)
			want(s, "fields", s.device.GetFieldValues(make([]nvml.FieldValue, 1)), nvml.ERROR_GPU_IS_LOST)
			_, ret = s.host.DeviceGetHandleByIndex(0)
			want(s, "handle", ret, nvml.ERROR_GPU_IS_LOST)
			must[string](s)(gpuOf(s, s.host, 1).GetUUID())
		},
		func(s struck) {
			must[string](s)(s.device.GetUUID())
			s.expect("energy began again", must[uint64](s)(s.device.GetTotalEnergyConsumption()) < 100*750*1000)
		}},
	{"error", "h100", scenarios.Fault{Kind: "error", Call: "nvmlDeviceGetTemperature", Return: "ERROR_UNKNOWN"},
		func(s struck) {
			_, ret := s.device.GetTemperature(nvml.TEMPERATURE_GPU)
			want(s, "temperature", ret, nvml.ERROR_UNKNOWN)
			must[uint32](s)(s.device.GetPowerUsage())
		},
		func(s struck) { must[uint32](s)(s.device.GetTemperature(nvml.TEMPERATURE_GPU)) }},
	{"node_gone", "h100", scenarios.Fault{Kind: "node_gone"},
		func(s struck) {
			_, ret := s.device.GetUUID()
			want(s, "identity", ret, nvml.ERROR_UNKNOWN)
			_, ret = s.host.DeviceGetHandleByIndex(0)
			want(s, "handle", ret, nvml.ERROR_UNKNOWN)
			must[string](s)(gpuOf(s, s.host, 1).GetUUID())
			s.expect("both are counted", must[int](s)(s.host.DeviceGetCount()) == 2)
		},
		func(s struck) {
			s.expect("energy went on", must[uint64](s)(s.device.GetTotalEnergyConsumption()) > 100*600*1000)
		}},
	{"hot_remove", "h100", scenarios.Fault{Kind: "hot_remove"},
		func(s struck) {
			s.expect("one GPU is left", must[int](s)(s.host.DeviceGetCount()) == 1)
			_, ret := s.device.GetPowerUsage()
			want(s, "the old handle", ret, nvml.ERROR_GPU_IS_LOST)
			s.expect("the other is first", must[int](s)(gpuOf(s, s.host, 0).GetMinorNumber()) == 1)
		},
		func(s struck) {
			s.expect("both are there", must[int](s)(s.host.DeviceGetCount()) == 2)
			must[uint32](s)(s.device.GetPowerUsage())
		}},
}

// TestFaults strikes a GPU under full load with each kind of fault.
func TestFaults(t *testing.T) {
	for _, c := range faultTests {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c.fault.At, c.fault.For = scenarios.Duration(10*time.Second), scenarios.Duration(40*time.Second)
				h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Model: c.model, Load: "full", Count: 2}},
					Faults: []scenarios.Fault{c.fault}}, Options{})
				s := struck{t, h, gpuOf(t, h, 0)}
				checkSums(t, s.device)
				time.Sleep(40 * time.Second)
				c.during(s)
				checkSums(t, gpuOf(t, h, must[int](t)(h.DeviceGetCount())-1))
				time.Sleep(100 * time.Second)
				c.after(s)
			})
		})
	}
}

// TestHotAdd checks a GPU that appears later.
func TestHotAdd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Count: 2}},
			Faults: []scenarios.Fault{{Kind: "hot_add", GPU: 1, At: scenarios.Duration(time.Minute)}}}, Options{})
		if n := must[int](t)(h.DeviceGetCount()); n != 1 {
			t.Errorf("%d GPUs before", n)
		}
		time.Sleep(time.Minute)
		if n := must[int](t)(h.DeviceGetCount()); n != 2 {
			t.Errorf("%d GPUs after", n)
		}
	})
}

// TestEveryKind checks that the faults scenario has every kind, and that each
// has an effect.
func TestEveryKind(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range embedded(t, "faults").Faults {
		seen[f.Kind] = true
	}
	for _, kind := range scenarios.Kinds() {
		if !seen[kind] {
			t.Errorf("the scenario faults has no %s", kind)
		}
		if _, ok := effects[kind]; !ok {
			t.Errorf("effects has no row for %s", kind)
		}
	}
}

// TestNamedValues compares the values that a scenario can name with those that
// the simulation knows.
func TestNamedValues(t *testing.T) {
	severities := []string{}
	for _, s := range aerSeverities {
		severities = append(severities, s.name)
	}
	for name, c := range map[string]struct {
		gpu   scenarios.GPU
		fault scenarios.Fault
		want  []string
	}{
		"load":     {scenarios.GPU{Load: "?"}, scenarios.Fault{Kind: "hang"}, slices.Sorted(maps.Keys(loads))},
		"fabric":   {scenarios.GPU{}, scenarios.Fault{Kind: "fabric", Value: "?"}, slices.Sorted(maps.Keys(fabricFaults))},
		"severity": {scenarios.GPU{}, scenarios.Fault{Kind: "pcie_aer", Severity: "?"}, severities},
	} {
		_, err := New(scenarios.Scenario{GPUs: []scenarios.GPU{c.gpu}, Faults: []scenarios.Fault{c.fault}}, Options{})
		_, list, _ := strings.Cut(fmt.Sprint(err), "want one of ")
		if list, _, _ = strings.Cut(list, ", on a model"); list != strings.Join(c.want, ", ") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for name, l := range loads {
		_, err := New(scenarios.Scenario{GPUs: []scenarios.GPU{{Load: name}}, Faults: []scenarios.Fault{{Kind: "leak"}}},
			Options{})
		if (err == nil) != (len(l.procs) > 0) {
			t.Errorf("a leak under the load %s, which has %d processes: %v", name, len(l.procs), err)
		}
	}
}
