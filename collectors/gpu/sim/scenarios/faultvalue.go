package scenarios

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// recoveryActions lists the values of field 230 by name.
var recoveryActions = map[string]uint32{
	"none":        uint32(nvml.GPU_RECOVERY_ACTION_NONE),
	"reset":       uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET),
	"reboot":      uint32(nvml.GPU_RECOVERY_ACTION_NODE_REBOOT),
	"drain_p2p":   uint32(nvml.GPU_RECOVERY_ACTION_DRAIN_P2P),
	"drain_reset": uint32(nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET),
	"imex":        uint32(nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN),
}

// returns lists the NVML errors by name.
var returns = func() map[string]nvml.Return {
	all := map[string]nvml.Return{}
	for r := nvml.ERROR_UNINITIALIZED; r <= nvml.ERROR_DEPRECATED; r++ {
		all[r.Error()] = r
	}
	all["ERROR_NOT_READY"] = nvml.ERROR_NOT_READY
	all["ERROR_GPU_NOT_FOUND"] = nvml.ERROR_GPU_NOT_FOUND
	all["ERROR_INVALID_STATE"] = nvml.ERROR_INVALID_STATE
	all["ERROR_UNKNOWN"] = nvml.ERROR_UNKNOWN
	return all
}()

// RecoveryAction returns the value of f as field 230 has it.
func (f *Fault) RecoveryAction() uint32 { return recoveryActions[f.Value] }

// NVMLReturn returns the return code of an error.
func (f *Fault) NVMLReturn() nvml.Return { return returns[f.Return] }

// aerSeverities are the severities of the PCIe errors that the kernel counts.
var aerSeverities = []string{"correctable", "nonfatal", "fatal"}

// modeValues are the modes that can be switched off.
var modeValues = []string{"ecc", "persistence"}

// fabricFaults are the possible faults in the fabric of GPUs behind switches.
var fabricFaults = []string{"in_progress", "registration", "route_unhealthy"}

// Port returns the name of an InfiniBand port.
func Port(index int) string { return fmt.Sprintf("mlx5_%d/1", index) }

// deviceCall reports whether name is an NVML function on a device.
func deviceCall(name string) bool {
	method, ok := strings.CutPrefix(name, "nvmlDevice")
	if !ok {
		method = strings.TrimPrefix(name, "nvml")
	}
	_, exists := reflect.TypeFor[nvml.Device]().MethodByName(method)
	return exists && ok != strings.HasPrefix(method, "Gpm")
}

// HostCall reports whether f concerns an NVML function that needs no device.
func (f *Fault) HostCall() bool {
	method, ok := strings.CutPrefix(f.Call, "nvml")
	_, exists := reflect.TypeFor[nvml.Interface]().MethodByName(method)
	return ok && exists && !deviceCall(f.Call)
}
