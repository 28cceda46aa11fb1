package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// effect is what a kind of fault does: to the GPU's state when its window
// begins and ends, and to the calls meanwhile.
type effect struct {
	begin, end func(*gpu, *scenarios.Fault)
	init       nvml.Return // return code of Init
	session    nvml.Return // return code of all calls of a session, which is then over
	device     nvml.Return // return code of calls on the GPU
}

// effects has a row for each kind of fault. A fault with an empty row is looked
// up where it matters: in what the driver lists, in the kernel's files, or in a
// job on several GPUs.
var effects = map[string]effect{
	"xid":             {begin: (*gpu).raiseXID},
	"event":           {begin: (*gpu).raiseEvent},
	"kernel_line":     {begin: (*gpu).logLine},
	"ecc":             {begin: (*gpu).raiseECC},
	"row_remap":       {begin: (*gpu).remapRows, end: (*gpu).remapDone},
	"nvlink_down":     {begin: (*gpu).linkDown, end: (*gpu).linkUp},
	"nvlink_errors":   {begin: (*gpu).linkErrorsBegin, end: (*gpu).linkErrorsEnd},
	"pcie_errors":     {begin: (*gpu).pcieErrorsBegin, end: (*gpu).pcieErrorsEnd},
	"pcie_aer":        {begin: (*gpu).raiseAER},
	"pci_gone":        {},
	"driver_unbound":  {end: (*gpu).reload},
	"ib_down":         {},
	"pcie_degraded":   {begin: (*gpu).pcieWorse, end: (*gpu).pcieWell},
	"thermal":         {begin: (*gpu).airflowLost, end: (*gpu).airflowBack},
	"power_brake":     {begin: (*gpu).brakeOn, end: (*gpu).brakeOff},
	"clock":           {begin: (*gpu).clockHeld, end: (*gpu).clockFree},
	"power":           {begin: (*gpu).powerMore, end: (*gpu).powerUsual},
	"hang":            {begin: (*gpu).hangBegin, end: (*gpu).hangEnd},
	"stall":           {begin: (*gpu).stallBegin, end: (*gpu).stallEnd},
	"leak":            {begin: (*gpu).leakBegin, end: (*gpu).leakEnd},
	"orphan_memory":   {begin: (*gpu).orphanLeft, end: (*gpu).orphanEnd},
	"ghost":           {begin: (*gpu).ghostLeft, end: (*gpu).ghostEnd},
	"mode":            {begin: (*gpu).modeDrift, end: (*gpu).modeBack},
	"spare_rows":      {begin: (*gpu).spareRows, end: (*gpu).spareBack},
	"bypass":          {begin: (*gpu).tenantFault, end: (*gpu).tenantFaultEnd},
	"greedy":          {begin: (*gpu).tenantFault, end: (*gpu).tenantFaultEnd},
	"starved":         {begin: (*gpu).tenantFault, end: (*gpu).tenantFaultEnd},
	"job_slow":        {},
	"job_straggler":   {},
	"job_hang":        {},
	"fabric":          {begin: (*gpu).fabricIll, end: (*gpu).fabricWell},
	"recovery_action": {begin: (*gpu).askRecovery, end: (*gpu).recovered},
	"reset_required":  {begin: (*gpu).resetDue, end: (*gpu).reload, device: nvml.ERROR_RESET_REQUIRED},
	"lost":            {begin: (*gpu).fallOff, end: (*gpu).reload, device: nvml.ERROR_GPU_IS_LOST},
	"node_gone":       {device: nvml.ERROR_UNKNOWN},
	"nodes_gone":      {init: nvml.ERROR_UNKNOWN, device: nvml.ERROR_UNKNOWN},
	"wedge":           {},
	"error":           {},
	"hot_remove":      {},
	"hot_add":         {},
	"driver_gone":     {end: (*gpu).reload, init: nvml.ERROR_DRIVER_NOT_LOADED, session: nvml.ERROR_UNINITIALIZED},
	"library_mismatch": {end: (*gpu).reload, init: nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		session: nvml.ERROR_LIB_RM_VERSION_MISMATCH},
}
