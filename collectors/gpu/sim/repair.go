package sim

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// GetRepairStatus returns that no repair is pending.
func (d *device) GetRepairStatus() (nvml.RepairStatus, nvml.Return) {
	return fixed(d, "nvmlDeviceGetRepairStatus", func(*models.Model) nvml.RepairStatus {
		s := nvml.RepairStatus{}
		s.Version = nvml.STRUCT_VERSION(s, 1)
		return s
	})
}

// GetUnrepairableMemoryFlag_v1 is set while row remapping has failed.
func (d *device) GetUnrepairableMemoryFlag_v1() (nvml.UnrepairableMemoryStatus_v1, nvml.Return) {
	return read(d, "nvmlDeviceGetUnrepairableMemoryFlag_v1",
		func(g *gpu) (nvml.UnrepairableMemoryStatus_v1, nvml.Return) {
			return nvml.UnrepairableMemoryStatus_v1{BUnrepairableMemory: flag(g.rows.failure)}, nvml.SUCCESS
		})
}

// GetRetiredPages is not supported: these models remap rows instead.
func (d *device) GetRetiredPages(nvml.PageRetirementCause) ([]uint64, nvml.Return) {
	return featured(d, "nvmlDeviceGetRetiredPages", "retired_pages", func(*gpu) []uint64 { return nil })
}

// GetRetiredPagesPendingStatus is not supported: these models remap rows.
func (d *device) GetRetiredPagesPendingStatus() (nvml.EnableState, nvml.Return) {
	return featured(d, "nvmlDeviceGetRetiredPagesPendingStatus", "retired_pages", func(*gpu) nvml.EnableState {
		return nvml.FEATURE_DISABLED
	})
}

// GetLastBBXFlushTime returns the time of the last write of the black box, in
// microseconds since the epoch, and its duration in microseconds.
func (d *device) GetLastBBXFlushTime() (at uint64, took uint, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetLastBBXFlushTime", func(g *gpu) nvml.Return {
		if !g.model.Has("bbx") {
			return nvml.ERROR_NOT_SUPPORTED
		}
		at, took = g.host.stamp(g.time().Truncate(time.Hour)), 11_500
		return nvml.SUCCESS
	})
	return at, took, ret
}

func (g *gpu) askRecovery(f *scenarios.Fault) { g.request(f.RecoveryAction()) }

// request sets the recovery action, as the driver does with XID 154.
func (g *gpu) request(action uint32) {
	g.action = action
	g.emit(nvml.EventTypeGpuRecoveryAction, uint64(g.action), noInstance, noInstance)
	g.xid(154, nil, nil)
}

func (g *gpu) recovered(*scenarios.Fault) {
	g.action = uint32(nvml.GPU_RECOVERY_ACTION_NONE)
	g.emit(nvml.EventTypeGpuRecoveryAction, 0, noInstance, noInstance)
}

func (g *gpu) resetDue(*scenarios.Fault) { g.request(uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET)) }

func (g *gpu) fallOff(*scenarios.Fault) {
	g.emit(nvml.EventTypeGpuUnavailableError, 0, noInstance, noInstance)
	g.xid(79, nil, nil)
}
