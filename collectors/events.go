package collectors

import (
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Events that the driver raises. XID codes that a rule names exist from the
// start, because increase() misses a counter that is born at 1.
var (
	XIDErrors = Counter("nvgpu_xid_errors_total", "XID errors since the agent opened the GPU, by code; 999 is one that the driver does not name.", "xid", "gi")
	XIDLast   = Gauge("nvgpu_xid_last_timestamp_seconds", "When the XID error was last seen, as a Unix time.", "xid")
	Events    = Counter("nvgpu_events_total", "Other events of the driver since the agent opened the GPU.", "type")
)

var eventTypes = []struct {
	name string
	bit  uint64
}{
	{"ecc_sbe", nvml.EventTypeSingleBitEccError}, {"ecc_dbe", nvml.EventTypeDoubleBitEccError},
	{"ecc_sbe_storm", nvml.EventTypeSingleBitEccErrorStorm}, {"dram_retirement", nvml.EventTypeDramRetirementEvent},
	{"dram_retirement_failure", nvml.EventTypeDramRetirementFailure}, {"poison_nonfatal", nvml.EventTypeNonFatalPoisonError},
	{"poison_fatal", nvml.EventTypeFatalPoisonError}, {"gpu_unavailable", nvml.EventTypeGpuUnavailableError},
	{"recovery_action", nvml.EventTypeGpuRecoveryAction}, {"power_source", nvml.EventTypePowerSourceChange},
	{"pstate", nvml.EventTypePState}, {"mig_config", nvml.EventMigConfigChange},
}

// wantedEvents is all but the changes of clocks: under load there are twenty
// a second, and nvgpu_clock_event_active says more.
const wantedEvents = nvml.EventTypeAll &^ nvml.EventTypeClock

// maxEvents bounds how many events one pass takes; the rest wait in the driver.
const maxEvents = 1000

// noInstance is what NVML gives where an event belongs to no MIG instance.
const noInstance = 0xFFFFFFFF

var _ = Register(Collector{
	Name:    "events",
	Doc:     "XID errors and other events of the driver.",
	Tier:    Fast,
	Metrics: []*Metric{XIDErrors, XIDLast, Events},
	Open: func(g *gpu.Device) Read {
		set, supported, ret := g.Events(wantedEvents)
		if ret != nvml.SUCCESS {
			return func(_ *gpu.Device, out *Readings) { out.Put(XIDErrors, 0, ret); out.Put(Events, 0, ret) }
		}
		xids := map[[2]string]bool{}
		last := map[string]time.Time{}
		return func(_ *gpu.Device, out *Readings) {
			counts := map[uint64]float64{}
			raised := map[[2]string]float64{}
			for _, code := range out.config.XIDs {
				xids[[2]string{strconv.Itoa(code), ""}] = true
			}
			for range maxEvents {
				e, ret := set.Wait(0)
				if ret != nvml.SUCCESS {
					if ret != nvml.ERROR_TIMEOUT {
						out.Fail(ret)
					}
					break
				}
				if e.EventType != nvml.EventTypeXidCriticalError {
					counts[e.EventType]++
					continue
				}
				key := [2]string{strconv.FormatUint(e.EventData, 10), ""}
				if e.GpuInstanceId != noInstance {
					key[1] = strconv.FormatUint(uint64(e.GpuInstanceId), 10)
				}
				xids[key] = true
				raised[key]++
				last[key[0]] = out.Now
			}
			for key := range xids {
				out.Add(XIDErrors, raised[key], key[0], key[1])
			}
			for xid, t := range last {
				out.Set(XIDLast, float64(t.UnixMilli())/1e3, xid)
			}
			for _, t := range eventTypes {
				if supported&t.bit != 0 {
					out.Add(Events, counts[t.bit], t.name)
				}
			}
		}
	},
})
