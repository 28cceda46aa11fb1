package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// open returns the error of a call on the host, such as ERROR_UNINITIALIZED
// outside a session.
func (h *Host) open(call string) nvml.Return {
	_, _, ret := h.enter(call)
	return ret
}

// Extensions returns the symbol table.
func (h *Host) Extensions() nvml.ExtendedInterface { return symbols(h.scenario.MissingSymbols) }

// symbols are the functions that the simulated driver lacks.
type symbols []string

// LookupSymbol returns an error for a missing symbol.
func (s symbols) LookupSymbol(name string) error {
	if slices.Contains(s, name) {
		return fmt.Errorf("undefined symbol: %s", name)
	}
	return nil
}

// SystemGetDriverVersion returns the scenario's driver version.
func (h *Host) SystemGetDriverVersion() (string, nvml.Return) {
	return h.scenario.Driver, h.open("nvmlSystemGetDriverVersion")
}

// SystemGetDriverBranch returns the branch of the driver version.
func (h *Host) SystemGetDriverBranch() (nvml.SystemDriverBranchInfo, nvml.Return) {
	var info nvml.SystemDriverBranchInfo
	major, _, _ := strings.Cut(h.scenario.Driver, ".")
	text(info.Branch[:], "r"+major+"_00")
	return info, h.open("nvmlSystemGetDriverBranch")
}

// SystemGetCudaDriverVersion returns the CUDA version times 1000.
func (h *Host) SystemGetCudaDriverVersion() (int, nvml.Return) {
	version, err := strconv.Atoi(h.scenario.CUDA)
	if err != nil {
		return 0, nvml.ERROR_UNKNOWN
	}
	return version, h.open("nvmlSystemGetCudaDriverVersion")
}

// SystemGetNVMLVersion returns the CUDA major version and the driver version.
func (h *Host) SystemGetNVMLVersion() (string, nvml.Return) {
	version, ret := h.SystemGetCudaDriverVersion()
	return fmt.Sprintf("%d.%s", version/1000, h.scenario.Driver), ret
}

// SystemGetConfComputeState returns that confidential computing is off.
func (h *Host) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	return nvml.ConfComputeSystemState{}, h.open("nvmlSystemGetConfComputeState")
}

// SystemGetConfComputeGpusReadyState returns 0, as on a host without
// confidential computing.
func (h *Host) SystemGetConfComputeGpusReadyState() (uint32, nvml.Return) {
	return 0, h.open("nvmlSystemGetConfComputeGpusReadyState")
}

// SystemGetConfComputeKeyRotationThresholdInfo is not supported without
// confidential computing.
func (h *Host) SystemGetConfComputeKeyRotationThresholdInfo() (nvml.ConfComputeGetKeyRotationThresholdInfo,
	nvml.Return) {
	if ret := h.open("nvmlSystemGetConfComputeKeyRotationThresholdInfo"); ret != nvml.SUCCESS {
		return nvml.ConfComputeGetKeyRotationThresholdInfo{}, ret
	}
	return nvml.ConfComputeGetKeyRotationThresholdInfo{}, nvml.ERROR_NOT_SUPPORTED
}

// text copies s into a C string.
func text(to []int8, s string) {
	for i := range min(len(s), len(to)-1) {
		to[i] = int8(s[i])
	}
}
