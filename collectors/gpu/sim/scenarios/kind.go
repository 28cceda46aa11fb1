package scenarios

import (
	"maps"
	"slices"

	"gpusteward/collectors/gpu/sim/models"
)

// kind is what a scenario may say about a kind of fault.
type kind struct {
	keys []string // besides at, for, every and gpu
	host bool     // it concerns the whole host, and has no key gpu
	once bool     // it does not repeat
	// check fills the defaults of the keys, and checks their values; nil: there is nothing to check
	check func(*Fault, *GPU, *models.Model) error
}

// kinds lists the kinds of fault.
var kinds = map[string]kind{
	// An XID event.
	"xid": {keys: []string{"code", "gi", "ci"}, check: checkXID},
	// Another event of the driver, without other effects.
	"event": {keys: []string{"value"}, check: checkEvent},
	// A line in the kernel's log, without other effects.
	"kernel_line": {keys: []string{"line"}, check: checkLine},
	// Memory errors; uncorrected ones come with XID 94.
	"ecc": {keys: []string{"severity", "location", "count"}, check: checkECC},
	// Remapped memory rows, with XID 63, or 64 for a failure.
	"row_remap": {keys: []string{"severity", "count", "pending", "failure"}, check: checkSeverity},
	// An NVLink goes down, with XID 74.
	"nvlink_down": {keys: []string{"link"}, check: checkLink},
	// Errors on an NVLink, count each second.
	"nvlink_errors": {keys: []string{"link", "count"}, check: checkLink},
	// Replays and correctable errors on the PCIe link, count each second.
	"pcie_errors": {keys: []string{"count"}},
	// PCIe errors counted by the kernel, once.
	"pcie_aer": {keys: []string{"severity", "count"}, check: checkAER},
	// The GPU reads as all ones on the PCI bus, while the driver still answers.
	"pci_gone": {},
	// The driver has released the GPU, which is still on the bus.
	"driver_unbound": {},
	// An InfiniBand port goes down.
	"ib_down": {keys: []string{"device"}, host: true},
	// The PCIe link falls to a lower generation or width.
	"pcie_degraded": {keys: []string{"generation", "width"}, check: checkPCIe},
	// Loss of airflow: the temperature runs away.
	"thermal": {keys: []string{"celsius"}, check: checkThermal},
	// The external power brake is asserted.
	"power_brake": {},
	// The SM clock stays low, without a reason.
	"clock": {keys: []string{"megahertz"}, check: checkClock},
	// More power is drawn than the work explains.
	"power": {keys: []string{"watts"}, check: checkPower},
	// A kernel spins: the GPU is busy without progress.
	"hang": {},
	// The processes do nothing.
	"stall": {},
	// The first process allocates count MiB more each minute, until memory is
	// full.
	"leak": {keys: []string{"count"}, check: checkLeak},
	// An ended process leaves count MiB in use.
	"orphan_memory": {keys: []string{"count"}},
	// A process has ended, and the driver still lists it with count MiB.
	"ghost": {keys: []string{"count"}},
	// A mode that was on is off.
	"mode": {keys: []string{"value"}, check: checkMode},
	// Banks of memory have few spare rows, or none.
	"spare_rows": {keys: []string{"value", "count"}, check: checkSpareRows},
	// A process of each of the tenant's workloads bypasses the hook.
	"bypass": {keys: []string{"tenant"}},
	// The tenant exceeds its limit on a full GPU.
	"greedy": {keys: []string{"tenant"}},
	// The tenant gets half of its guarantee while others use the GPU too.
	"starved": {keys: []string{"tenant"}},
	// Steps of the GPU's job take longer than usual.
	"job_slow": {keys: []string{"value", "count", "line"}},
	// The other ranks of the GPU's job wait for its rank in every step.
	"job_straggler": {keys: []string{"value", "count"}},
	// The GPU's rank does nothing, and the other ranks of its job wait for it.
	"job_hang": {keys: []string{"value", "line"}},
	// The GPU has a fault in the fabric of its NVSwitches.
	"fabric": {keys: []string{"value"}, check: checkFabric},
	// The driver asks for a recovery action, with XID 154.
	"recovery_action": {keys: []string{"value"}, check: checkRecovery},
	// All calls except identity fail; the GPU is reset when the window ends.
	"reset_required": {},
	// The GPU falls off the bus, with XID 79; it is reset when it returns.
	"lost": {},
	// The GPU's device node becomes inaccessible.
	"node_gone": {},
	// All device nodes become inaccessible, as after a change of a container's
	// cgroup.
	"nodes_gone": {host: true, once: true},
	// Calls block until the window ends: the named one, or all except handles.
	"wedge": {keys: []string{"call"}, check: checkCall},
	// A call fails.
	"error": {keys: []string{"call", "return"}, check: checkReturn},
	// The GPU is removed from the bus.
	"hot_remove": {},
	// The GPU is absent until the window ends.
	"hot_add": {once: true},
	// The driver is unloaded; its counters restart.
	"driver_gone": {host: true, once: true},
	// Another version of the driver is loaded, until the library matches it.
	"library_mismatch": {host: true, once: true},
}

// Kinds returns the names of all kinds, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// HostWide reports whether f concerns the whole host.
func (f *Fault) HostWide() bool { return kinds[f.Kind].host }
