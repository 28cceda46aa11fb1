package gpu

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// returns names NVML's return codes. The library's own texts need a loaded
// library, and are sentences; a label value needs one word.
var returns = map[nvml.Return]string{
	nvml.SUCCESS:                         "success",
	nvml.ERROR_UNINITIALIZED:             "uninitialized",
	nvml.ERROR_INVALID_ARGUMENT:          "invalid_argument",
	nvml.ERROR_NOT_SUPPORTED:             "not_supported",
	nvml.ERROR_NO_PERMISSION:             "no_permission",
	nvml.ERROR_ALREADY_INITIALIZED:       "already_initialized",
	nvml.ERROR_NOT_FOUND:                 "not_found",
	nvml.ERROR_INSUFFICIENT_SIZE:         "insufficient_size",
	nvml.ERROR_INSUFFICIENT_POWER:        "insufficient_power",
	nvml.ERROR_DRIVER_NOT_LOADED:         "driver_not_loaded",
	nvml.ERROR_TIMEOUT:                   "timeout",
	nvml.ERROR_IRQ_ISSUE:                 "irq_issue",
	nvml.ERROR_LIBRARY_NOT_FOUND:         "library_not_found",
	nvml.ERROR_FUNCTION_NOT_FOUND:        "function_not_found",
	nvml.ERROR_CORRUPTED_INFOROM:         "corrupted_inforom",
	nvml.ERROR_GPU_IS_LOST:               "gpu_is_lost",
	nvml.ERROR_RESET_REQUIRED:            "reset_required",
	nvml.ERROR_OPERATING_SYSTEM:          "operating_system",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH:   "lib_rm_version_mismatch",
	nvml.ERROR_IN_USE:                    "in_use",
	nvml.ERROR_MEMORY:                    "memory",
	nvml.ERROR_NO_DATA:                   "no_data",
	nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:    "vgpu_ecc_not_supported",
	nvml.ERROR_INSUFFICIENT_RESOURCES:    "insufficient_resources",
	nvml.ERROR_FREQ_NOT_SUPPORTED:        "freq_not_supported",
	nvml.ERROR_ARGUMENT_VERSION_MISMATCH: "argument_version_mismatch",
	nvml.ERROR_DEPRECATED:                "deprecated",
	nvml.ERROR_NOT_READY:                 "not_ready",
	nvml.ERROR_GPU_NOT_FOUND:             "gpu_not_found",
	nvml.ERROR_INVALID_STATE:             "invalid_state",
	nvml.ERROR_UNKNOWN:                   "unknown",
}

// ReturnName names a return code in one word that fits a label.
func ReturnName(ret nvml.Return) string {
	if name, ok := returns[ret]; ok {
		return name
	}
	return fmt.Sprintf("code_%d", int32(ret))
}

// Unsupported reports whether ret means that this GPU, driver or mode has no
// such reading, which is an answer and not a failure.
func Unsupported(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_VGPU_ECC_NOT_SUPPORTED,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	}
	return false
}

// Absent turns "invalid argument" into "not supported": the GPU does not know
// the argument because it has no such reading.
func Absent(ret nvml.Return) nvml.Return {
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return ret
}

// DriverGone reports whether ret means that NVML must be reopened.
func DriverGone(ret nvml.Return) bool {
	return slices.Contains([]nvml.Return{
		nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH,
	}, ret)
}

// Lost reports whether ret means that this GPU will not answer until it is
// reset or returns to the bus.
func Lost(ret nvml.Return) bool {
	return ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED || ret == nvml.ERROR_GPU_NOT_FOUND
}

// Barred reports whether ret, if every call returns it, means that the GPU's
// device nodes are gone or closed to this process, as after a reload of its
// container's cgroup.
func Barred(ret nvml.Return) bool {
	return ret == nvml.ERROR_UNKNOWN || ret == nvml.ERROR_NO_PERMISSION || ret == nvml.ERROR_OPERATING_SYSTEM
}

// An Error is a failed NVML call.
type Error struct {
	Call   string
	Return nvml.Return
	// Why is the kernel's explanation, which replaces the advice for the code;
	// nil if there is none.
	Why error
}

// advice tells an operator what to do about a return code.
var advice = map[nvml.Return]string{
	nvml.ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not on this host: install the NVIDIA driver",
	nvml.ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded: run nvidia-smi, or load it with " +
		"modprobe nvidia",
	nvml.ERROR_NO_PERMISSION: "no permission on /dev/nvidiactl or /dev/nvidia*: run as root or join the " +
		"group that owns them",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "the library and the kernel module have different versions: reload the " +
		"module or reboot",
	nvml.ERROR_GPU_IS_LOST:    "the GPU has fallen off the bus: reset it or reboot",
	nvml.ERROR_RESET_REQUIRED: "the GPU needs a reset",
	nvml.ERROR_UNKNOWN:        "the device nodes may be gone, as after a reload of the container's cgroup",
}

func (e *Error) Error() string {
	s := e.Call + ": " + ReturnName(e.Return)
	if e.Why != nil {
		s += " (" + e.Why.Error() + ")"
	} else if a := advice[e.Return]; a != "" {
		s += " (" + a + ")"
	}
	return s
}

// Err returns the error for ret, nil for SUCCESS.
func Err(call string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &Error{Call: call, Return: ret}
}

// ReturnOf returns the code of an *Error, SUCCESS for nil, UNKNOWN for others.
func ReturnOf(err error) nvml.Return {
	var e *Error
	switch {
	case err == nil:
		return nvml.SUCCESS
	case errors.As(err, &e):
		return e.Return
	}
	return nvml.ERROR_UNKNOWN
}
