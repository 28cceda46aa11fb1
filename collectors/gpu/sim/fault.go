package sim

import (
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Fault is a fault at a time of the scenario. Keys that its kind does not use
// are errors.
type Fault struct {
	Kind  string   `yaml:"kind"`  // one of kinds
	At    Duration `yaml:"at"`    // since the start of the scenario
	For   Duration `yaml:"for"`   // length of the window; 0: for ever
	Every Duration `yaml:"every"` // repeats with this period, longer than the window
	GPU   int      `yaml:"gpu"`   // index of the GPU; ignored for a call on the host

	Code uint64  `yaml:"code"` // xid: the code
	GI   *uint32 `yaml:"gi"`   // xid: GPU instance
	CI   *uint32 `yaml:"ci"`   // xid: compute instance
	// ecc, row_remap: corrected or uncorrected; pcie_aer: correctable, nonfatal
	// or fatal
	Severity string `yaml:"severity"`
	Device   string `yaml:"device"`   // ib_down: the port, mlx5_0/1 by default
	Location string `yaml:"location"` // ecc: dram or sram
	// ecc, row_remap, spare_rows, nvlink_errors, pcie_aer: number, 1 by
	// default; leak, orphan_memory, ghost: MiB
	Count      uint64  `yaml:"count"`
	Pending    bool    `yaml:"pending"`    // row_remap: a reset is due, until the window ends
	Failure    bool    `yaml:"failure"`    // row_remap: the remapping failed, until the window ends
	Link       int     `yaml:"link"`       // nvlink_down, nvlink_errors: NVLink index
	Generation int     `yaml:"generation"` // pcie_degraded: PCIe generation
	Width      int     `yaml:"width"`      // pcie_degraded: lanes
	Celsius    float64 `yaml:"celsius"`    // thermal: target temperature
	Megahertz  float64 `yaml:"megahertz"`  // clock: maximum SM clock
	Watts      float64 `yaml:"watts"`      // power: additional draw
	Call       string  `yaml:"call"`       // wedge, error: the NVML function, such as nvmlDeviceGetFieldValues
	Return     string  `yaml:"return"`     // error: the NVML return, such as ERROR_UNKNOWN
	// recovery_action: the action; event: its type, such as ecc_sbe_storm;
	// mode: the mode; spare_rows: low or none; fabric: the fault
	Value  string `yaml:"value"`
	Tenant string `yaml:"tenant"` // bypass, greedy, starved: the tenant
	// kernel_line: the line; {pci} in it is the GPU's address, such as
	// 0000:1b:00
	Line string `yaml:"line"`
}

// kind describes a kind of fault: its keys in addition to at, for, every and
// gpu, its scope (the whole host, or a tenant on the GPU), its effect on the
// GPU's state when its window begins and ends, and the calls that fail
// meanwhile.
type kind struct {
	keys       []string
	host       bool
	tenant     bool
	begin, end func(*gpu, *Fault)
	init       nvml.Return // return code of Init
	session    nvml.Return // return code of all calls of a session, which is then over
	device     nvml.Return // return code of calls on the GPU
}

// kinds lists the kinds of fault. Those without begin affect calls only.
var kinds = map[string]kind{
	// An XID event.
	"xid": {keys: []string{"code", "gi", "ci"}, begin: (*gpu).raiseXID},
	// Another event of the driver, without other effects.
	"event": {keys: []string{"value"}, begin: (*gpu).raiseEvent},
	// A line in the kernel's log, without other effects.
	"kernel_line": {keys: []string{"line"}, begin: (*gpu).logLine},
	// Memory errors; uncorrected ones come with XID 94.
	"ecc": {keys: []string{"severity", "location", "count"}, begin: (*gpu).raiseECC},
	// Remapped memory rows, with XID 63, or 64 for a failure.
	"row_remap": {keys: []string{"severity", "count", "pending", "failure"}, begin: (*gpu).remapRows,
		end: (*gpu).remapDone},
	// An NVLink goes down, with XID 74.
	"nvlink_down": {keys: []string{"link"}, begin: (*gpu).linkDown, end: (*gpu).linkUp},
	// Errors on an NVLink, count each second.
	"nvlink_errors": {keys: []string{"link", "count"}, begin: (*gpu).linkErrorsBegin, end: (*gpu).linkErrorsEnd},
	// Replays and correctable errors on the PCIe link, count each second.
	"pcie_errors": {keys: []string{"count"}, begin: (*gpu).pcieErrorsBegin, end: (*gpu).pcieErrorsEnd},
	// PCIe errors counted by the kernel, once.
	"pcie_aer": {keys: []string{"severity", "count"}, begin: (*gpu).raiseAER},
	// The GPU reads as all ones on the PCI bus, while the driver still answers.
	"pci_gone": {},
	// The driver has released the GPU, which is still on the bus.
	"driver_unbound": {end: (*gpu).reload},
	// An InfiniBand port goes down.
	"ib_down": {keys: []string{"device"}, host: true},
	// The PCIe link falls to a lower generation or width.
	"pcie_degraded": {keys: []string{"generation", "width"}, begin: (*gpu).pcieWorse, end: (*gpu).pcieWell},
	// Loss of airflow: the temperature runs away.
	"thermal": {keys: []string{"celsius"}, begin: (*gpu).airflowLost, end: (*gpu).airflowBack},
	// The external power brake is asserted.
	"power_brake": {begin: (*gpu).brakeOn, end: (*gpu).brakeOff},
	// The SM clock stays low, without a reason.
	"clock": {keys: []string{"megahertz"}, begin: (*gpu).clockHeld, end: (*gpu).clockFree},
	// More power is drawn than the work explains.
	"power": {keys: []string{"watts"}, begin: (*gpu).powerMore, end: (*gpu).powerUsual},
	// A kernel spins: the GPU is busy without progress.
	"hang": {begin: (*gpu).hangBegin, end: (*gpu).hangEnd},
	// The processes do nothing.
	"stall": {begin: (*gpu).stallBegin, end: (*gpu).stallEnd},
	// The first process allocates count MiB more each minute, until memory is
	// full.
	"leak": {keys: []string{"count"}, begin: (*gpu).leakBegin, end: (*gpu).leakEnd},
	// An ended process leaves count MiB in use.
	"orphan_memory": {keys: []string{"count"}, begin: (*gpu).orphanLeft, end: (*gpu).orphanEnd},
	// A process has ended, and the driver still lists it with count MiB.
	"ghost": {keys: []string{"count"}, begin: (*gpu).ghostLeft, end: (*gpu).ghostEnd},
	// A mode that was on is off.
	"mode": {keys: []string{"value"}, begin: (*gpu).modeDrift, end: (*gpu).modeBack},
	// Banks of memory have few spare rows, or none.
	"spare_rows": {keys: []string{"value", "count"}, begin: (*gpu).spareRows, end: (*gpu).spareBack},
	// A process of each of the tenant's workloads bypasses the hook.
	"bypass": {keys: []string{"tenant"}, tenant: true, begin: tenantFault((*books).bypasses, true),
		end: tenantFault((*books).bypasses, false)},
	// The tenant exceeds its limit on a full GPU.
	"greedy": {keys: []string{"tenant"}, tenant: true, begin: tenantFault((*books).isGreedy, true),
		end: tenantFault((*books).isGreedy, false)},
	// The tenant gets half of its guarantee while others use the GPU too.
	"starved": {keys: []string{"tenant"}, tenant: true, begin: tenantFault((*books).isStarved, true),
		end: tenantFault((*books).isStarved, false)},
	// The GPU has a fault in the fabric of its NVSwitches.
	"fabric": {keys: []string{"value"}, begin: (*gpu).fabricIll, end: (*gpu).fabricWell},
	// The driver asks for a recovery action, with XID 154.
	"recovery_action": {keys: []string{"value"}, begin: (*gpu).askRecovery, end: (*gpu).recovered},
	// All calls except identity fail; the GPU is reset when the window ends.
	"reset_required": {begin: (*gpu).resetDue, end: (*gpu).reload, device: nvml.ERROR_RESET_REQUIRED},
	// The GPU falls off the bus, with XID 79; it is reset when it returns.
	"lost": {begin: (*gpu).fallOff, end: (*gpu).reload, device: nvml.ERROR_GPU_IS_LOST},
	// The GPU's device node becomes inaccessible.
	"node_gone": {device: nvml.ERROR_UNKNOWN},
	// All device nodes become inaccessible, as after a change of a container's
	// cgroup.
	"nodes_gone": {host: true, init: nvml.ERROR_UNKNOWN, device: nvml.ERROR_UNKNOWN},
	// Calls block until the window ends: the named one, or all except handles.
	"wedge": {keys: []string{"call"}},
	// A call fails.
	"error": {keys: []string{"call", "return"}},
	// The GPU is removed from the bus.
	"hot_remove": {},
	// The GPU is absent until the window ends.
	"hot_add": {},
	// The driver is unloaded; its counters restart.
	"driver_gone": {host: true, end: (*gpu).reload, init: nvml.ERROR_DRIVER_NOT_LOADED,
		session: nvml.ERROR_UNINITIALIZED},
	// Another version of the driver is loaded, until the library matches it.
	"library_mismatch": {host: true, end: (*gpu).reload, init: nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		session: nvml.ERROR_LIB_RM_VERSION_MISMATCH},
}

// forever is the end of a window without end.
const forever = time.Duration(math.MaxInt64)

// window returns the window of f that contains the simulated time t, if any.
func (f *Fault) window(t time.Duration) (from, to time.Duration, ok bool) {
	from = ceil(time.Duration(f.At))
	if t < from {
		return from, 0, false
	}
	if every := ceil(time.Duration(f.Every)); every > 0 {
		from += (t - from) / every * every
	}
	to = forever
	if f.For > 0 {
		to = from + ceil(time.Duration(f.For))
	}
	return from, to, t < to
}

// next returns the first time after t at which a window of f begins or ends.
func (f *Fault) next(t time.Duration) time.Duration {
	from, to, active := f.window(t)
	switch {
	case t < from || active:
		if active {
			if f.Every > 0 && to == forever {
				return from + ceil(time.Duration(f.Every))
			}
			return to
		}
		return from
	case f.Every > 0:
		return from + ceil(time.Duration(f.Every))
	}
	return forever
}

// ceil rounds a time up to a whole step, when the state changes.
func ceil(t time.Duration) time.Duration { return (t + step - 1) / step * step }
