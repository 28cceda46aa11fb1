package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// notAvailable is NVML_VALUE_NOT_AVAILABLE.
const notAvailable = ^uint64(0)

// running lists the processes of a mode, all or only those of the GPU instance
// gi. MPS clients have a compute context too.
func (g *gpu) running(mode nvml.ProcessMode, gi uint32) []nvml.ProcessInfo {
	all := []nvml.ProcessInfo{}
	for _, p := range g.procs {
		client := p.mode == nvml.PROCESS_MODE_MPS && mode == nvml.PROCESS_MODE_COMPUTE
		if p.mode != mode && !client || gi != noInstance && p.gi != gi {
			continue
		}
		if p.hidden {
			p.Memory = notAvailable
		}
		all = append(all, nvml.ProcessInfo{
			Pid: uint32(p.PID), UsedGpuMemory: p.Memory, GpuInstanceId: p.gi, ComputeInstanceId: p.ci,
		})
	}
	return all
}

// GetComputeRunningProcesses lists processes with a compute context.
func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("nvmlDeviceGetComputeRunningProcesses", nvml.PROCESS_MODE_COMPUTE)
}

// GetGraphicsRunningProcesses lists processes with a graphics context.
func (d *device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("nvmlDeviceGetGraphicsRunningProcesses", nvml.PROCESS_MODE_GRAPHICS)
}

// GetMPSComputeRunningProcesses lists the clients of MPS.
func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.running("nvmlDeviceGetMPSComputeRunningProcesses", nvml.PROCESS_MODE_MPS)
}

func (d *device) running(call string, mode nvml.ProcessMode) ([]nvml.ProcessInfo, nvml.Return) {
	return read(d, call, func(g *gpu) ([]nvml.ProcessInfo, nvml.Return) {
		return g.running(mode, noInstance), nvml.SUCCESS
	})
}
