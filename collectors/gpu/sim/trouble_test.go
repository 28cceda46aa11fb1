package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// fabricOf returns the state of the fabric, and whether a route is unhealthy.
func (s struck) fabricOf() (info nvml.GpuFabricInfo_v3, unhealthy bool) {
	s.Helper()
	info = must[nvml.GpuFabricInfo_v3](s)(s.device.FabricInfo())
	route := info.HealthMask >> nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY &
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY
	return info, route == nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE
}

func (s struck) used() uint64 {
	s.Helper()
	return must[nvml.Memory_v2](s)(s.device.GetMemoryInfo_v2()).Used >> 20
}

func (s struck) busy() uint32 {
	s.Helper()
	return must[nvml.Utilization](s)(s.device.GetUtilizationRates()).Gpu
}

func (s struck) watts() uint32 {
	s.Helper()
	return must[uint32](s)(s.device.GetPowerUsage()) / 1000
}

// troubles has the form of faultTests.
var troubles = []struct {
	name          string
	fault         scenarios.Fault
	during, after func(struck)
}{
	{"clock", scenarios.Fault{Kind: "clock", Megahertz: 900},
		func(s struck) {
			s.expect("the clock is held", must[uint32](s)(s.device.GetClockInfo(nvml.CLOCK_SM)) == 900)
			s.expect("nothing says why", s.reasons() == 0)
			s.expect("the work goes on", s.busy() > 95)
		},
		func(s struck) {
			s.expect("the clock is back", must[uint32](s)(s.device.GetClockInfo(nvml.CLOCK_SM)) > 1300)
		}},
	{"power", scenarios.Fault{Kind: "power", Watts: 120},
		func(s struck) {
			s.expect("more is drawn", s.watts() > 780)
			s.expect("the clock is as it was", must[uint32](s)(s.device.GetClockInfo(nvml.CLOCK_SM)) > 1300)
		},
		func(s struck) { s.expect("power is back", s.watts() < 730) }},
	{"hang", scenarios.Fault{Kind: "hang"},
		func(s struck) {
			s.expect("it is busy", s.busy() == 100 &&
				must[nvml.Utilization](s)(s.device.GetUtilizationRates()).Memory == 0)
			s.expect("it draws little", s.watts() < 250)
		},
		func(s struck) { s.expect("power is back", s.watts() > 600) }},
	{"stall", scenarios.Fault{Kind: "stall"},
		func(s struck) {
			s.expect("it is idle", s.busy() == 0 && s.watts() < 120)
			s.expect("the process is still there",
				len(must[[]nvml.ProcessInfo](s)(s.device.GetComputeRunningProcesses())) == 1)
		},
		func(s struck) { s.expect("it works", s.busy() > 95) }},
	{"leak", scenarios.Fault{Kind: "leak", Count: 6000},
		func(s struck) {
			s.expect("the memory grew for 30 s", near(float64(s.used()), 1139+3000, 120))
			p := must[[]nvml.ProcessInfo](s)(s.device.GetComputeRunningProcesses())[0]
			s.expect("the process has it", p.UsedGpuMemory>>20 > 4000)
		},
		func(s struck) { s.expect("the memory is back", s.used() < 1200) }},
	{"leak of all there is", scenarios.Fault{Kind: "leak", Count: 1 << 20},
		func(s struck) {
			s.expect("nothing is left", must[nvml.Memory_v2](s)(s.device.GetMemoryInfo_v2()).Free == 0)
		},
		func(s struck) { s.expect("the memory is back", s.used() < 1200) }},
	{"orphan_memory", scenarios.Fault{Kind: "orphan_memory", Count: 700},
		func(s struck) {
			s.expect("the memory is in use", near(float64(s.used()), 1139+700, 20))
			p := must[[]nvml.ProcessInfo](s)(s.device.GetComputeRunningProcesses())[0]
			s.expect("no process has it", p.UsedGpuMemory>>20 < 1200)
		},
		func(s struck) { s.expect("the memory is back", s.used() < 1200) }},
	{"ghost", scenarios.Fault{Kind: "ghost", Count: 700},
		func(s struck) {
			all := must[[]nvml.ProcessInfo](s)(s.device.GetComputeRunningProcesses())
			s.expect("the driver lists it", len(all) == 2 && all[1].UsedGpuMemory == 700<<20)
			_, known := s.host.Process(int(all[1].Pid))
			s.expect("the kernel does not know it", !known)
			s.expect("the memory is in use", near(float64(s.used()), 1139+700, 20))
		},
		func(s struck) { s.expect("the memory is back", s.used() < 1200) }},
	{"mode persistence", scenarios.Fault{Kind: "mode", Value: "persistence"},
		func(s struck) {
			s.expect("it is off", must[nvml.EnableState](s)(s.device.GetPersistenceMode()) == nvml.FEATURE_DISABLED)
		},
		func(s struck) {
			s.expect("it is on", must[nvml.EnableState](s)(s.device.GetPersistenceMode()) == nvml.FEATURE_ENABLED)
		}},
	{"mode ecc", scenarios.Fault{Kind: "mode", Value: "ecc"},
		func(s struck) { s.expect("it is off", s.field(nvml.FI_DEV_ECC_CURRENT) == 0) },
		func(s struck) { s.expect("it is on", s.field(nvml.FI_DEV_ECC_CURRENT) == 1) }},
	{"spare_rows", scenarios.Fault{Kind: "spare_rows", Value: "low", Count: 3},
		func(s struck) {
			h := must[nvml.RowRemapperHistogramValues](s)(s.device.GetRowRemapperHistogram())
			s.expect("banks are low", h.Low == 3 && h.None == 0 && h.Max+h.High+h.Partial+h.Low+h.None == 2560)
		},
		func(s struck) {
			s.expect("banks are well",
				must[nvml.RowRemapperHistogramValues](s)(s.device.GetRowRemapperHistogram()).Low == 0)
		}},
	{"fabric route", scenarios.Fault{Kind: "fabric", Value: "route_unhealthy"},
		func(s struck) { _, ill := s.fabricOf(); s.expect("a route is unhealthy", ill) },
		func(s struck) { _, ill := s.fabricOf(); s.expect("all routes are well", !ill) }},
	{"fabric registration", scenarios.Fault{Kind: "fabric", Value: "registration"},
		func(s struck) { info, _ := s.fabricOf(); s.expect("it failed", info.Status != 0) },
		func(s struck) { info, _ := s.fabricOf(); s.expect("it is done", info.Status == 0) }},
	{"ecc of an address", scenarios.Fault{Kind: "ecc", Severity: "uncorrected", Location: "sram", Count: 2},
		func(s struck) {
			var counts nvml.EccSramUniqueUncorrectedErrorCounts
			want(s, "addresses", s.device.GetSramUniqueUncorrectedEccErrorCounts(&counts), nvml.ERROR_INSUFFICIENT_SIZE)
			s.expect("one address had both errors", counts.EntryCount == 1)
		},
		func(struck) {}},
}

// TestTroubles strikes a GPU under full load.
func TestTroubles(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c.fault.At, c.fault.For = scenarios.Duration(10*time.Second), scenarios.Duration(40*time.Second)
				h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "full"}},
					Faults: []scenarios.Fault{c.fault}}, Options{})
				s := struck{t, h, gpuOf(t, h, 0)}
				time.Sleep(40 * time.Second)
				c.during(s)
				time.Sleep(100 * time.Second)
				c.after(s)
			})
		})
	}
}
